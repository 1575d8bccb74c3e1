"""What a sequence knows of itself follows every fork, append and truncate."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatserve.decoding import Context, Sample, Sequence
from chatserve.testing import END_TOKEN_ID
from tests.decoding.harness import PROMPT, answer

STOPS = ("ab", "bcc")
MAX_TOKENS, MIN_TOKENS = 9, 2
items = st.lists(
    st.one_of(
        st.sampled_from(b"abc"),
        st.builds(Sample, st.sampled_from([*b"abc", END_TOKEN_ID]), st.floats(-9, 0)),
    ),
    max_size=4,
)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("fork"), st.integers(0, 5), st.none()),
        st.tuples(st.just("append"), st.integers(0, 5), items),
        st.tuples(st.just("append"), st.integers(0, 5), items),
        st.tuples(st.just("truncate"), st.integers(0, 5), st.integers(0, 5)),
    ),
    max_size=25,
)


def end_of(samples: list[Sample]) -> str | None:
    """Why these generated tokens end, from the rules as documented."""
    text = "".join(chr(sample.token) for sample in samples if sample.token < 256)
    if samples and samples[-1].token == END_TOKEN_ID:
        return "stop"
    if len(samples) >= MIN_TOKENS and any(text.endswith(stop) for stop in STOPS):
        return "stop"
    return "length" if len(samples) == MAX_TOKENS else None


def shown(samples: list[Sample]) -> str:
    """Their text up to the earliest stop that counts."""
    text = ""
    for count, sample in enumerate(samples, 1):
        text += chr(sample.token) if sample.token < 256 else ""
        met = [stop for stop in STOPS if text.endswith(stop)] if sample.token < 256 else []
        if count >= MIN_TOKENS and met:
            return text[: -max(map(len, met))]
    return text


@given(operations=operations)
@settings(max_examples=80)
def test_a_sequence_is_its_list_of_samples(operations: list[tuple[str, int, Any]]) -> None:
    async def check(ctx: Context, prompt: Sequence, params: Any) -> None:
        model: dict[Sequence, list[Sample]] = {prompt: []}
        for operation, number, argument in operations:
            seq = list(model)[number % len(model)]
            if operation == "fork" and len(model) < 6:
                model[seq.fork()] = model[seq][:]
            elif operation == "truncate":
                length = min(argument, len(model[seq]))
                seq.truncate(len(PROMPT) + length)
                del model[seq][length:]
            elif operation == "append":
                append(seq, model[seq], argument)
            for one, samples in model.items():
                assert one.samples == samples
                assert one.generated == [sample.token for sample in samples]
                assert one.tokens == [*PROMPT, *one.generated]
                assert (len(one), one.num_generated) == (len(PROMPT) + len(samples), len(samples))
                total = sum(sample.logprob or 0.0 for sample in samples)
                assert one.logprob == pytest.approx(total, abs=1e-9)
                assert one.mean_logprob == pytest.approx(total / max(1, len(samples)), abs=1e-9)
                assert one.ended == (end_of(samples) if samples else None)
                assert one.text == shown(samples)
        ctx.publish(prompt)

    answer(check, max_tokens=MAX_TOKENS, min_tokens=MIN_TOKENS, stop=STOPS)


def append(seq: Sequence, samples: list[Sample], new: list[Sample | int]) -> None:
    """Append to both, up to the end."""
    if seq.ended:
        with pytest.raises(Exception, match="has ended"):
            seq.append(new)
        return
    assert seq.append(new) == seq.ended
    for item in new:
        samples.append(item if isinstance(item, Sample) else Sample(item))
        if end_of(samples):
            return
