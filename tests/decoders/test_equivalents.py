"""Decoders that must agree with others: speculation with plain sampling, guidance of scale 1, best-of with parallel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chatserve.testing import VOCAB_SIZE, Answer, RandomLogits, Record, Restricted, Script, TrialEngine
from tests.decoders.built_in import BUILT_IN, request

SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_k": 3, "frequency_penalty": 0.5},
    {"repetition_penalty": 1.3, "stop": ("ab", "ca")},
]


def run(name: str, model: Any = None, seed: int = 1, **fields: Any) -> tuple[Record, TrialEngine]:
    engine = TrialEngine(BUILT_IN.values(), model or few_letters(seed))
    [record] = engine.run(request(name, seed=seed, **fields))
    return record, engine


def few_letters(seed: int) -> Restricted:
    """Text that repeats itself now and then, and ends at some time."""
    logits = RandomLogits(VOCAB_SIZE, seed, scale=3.0, end_token_ids=(256,), end_bias=-2.0)
    return Restricted(logits, lambda context: (*b"abc", 256), penalty=60.0)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_speculation_answers_token_for_token_as_sampling(seed: int, sampling: dict[str, Any]) -> None:
    for params in ({}, {"ngram": 1, "draft": 16}):
        plain, _ = run("sampling", seed=seed, max_tokens=30, prompt=b"abcabcabc", **sampling)
        ours, _ = run("speculative", seed=seed, max_tokens=30, prompt=b"abcabcabc", params=params, **sampling)
        assert ours.answers() == plain.answers()


def test_speculation_at_temperature_0_is_greedy_in_fewer_steps_where_text_repeats() -> None:
    saying = list(b"to be or not to be, " * 6)
    model = Script(saying, vocab_size=VOCAB_SIZE, end_token_id=256)
    plain, slow = run("greedy", model, max_tokens=200)
    ours, fast = run("speculative", model, max_tokens=200, temperature=0.0)
    assert ours.answers() == plain.answers() == [Answer([*saying, 256], bytes(saying).decode(), "stop")]
    assert fast.stats()["steps"] * 4 < slow.stats()["steps"]


@pytest.mark.parametrize("sampling", [*SAMPLINGS[:3], {"stop": ("ab", "ca")}], ids=str)
def test_guidance_of_scale_1_is_sampling(sampling: dict[str, Any]) -> None:
    """But for the repetition penalty, which looks at the sign of logits: log-probabilities have lost it."""
    for seed in range(4):
        plain, _ = run("sampling", seed=seed, max_tokens=12, **sampling)
        params = {"scale": 1.0, "negative": "nothing"}
        guided, _ = run("guidance", seed=seed, max_tokens=12, params=params, **sampling)
        assert guided.answers() == plain.answers()


def test_guidance_takes_the_best_of_the_combined_rows() -> None:
    """Each token by hand, from the model's own rows behind both prompts."""
    model, prompt, negative, scale = few_letters(5), b"cab", b"bca", 3.0
    params = {"scale": scale, "negative": negative.decode()}
    [answer] = run("guidance", model, max_tokens=8, prompt=prompt, params=params, temperature=0.0)[0].answers()
    written: list[int] = []
    for token in answer.token_ids:
        positive, other = (_logprobs(model, [*begin, *written]) for begin in (prompt, negative))
        assert token == int(np.argmax(other + scale * (positive - other)))
        written.append(token)
    plain = run("sampling", model, max_tokens=8, prompt=prompt, temperature=0.0)[0].answers()
    assert [answer] != plain, "a scale of 3 changes this answer"


def test_the_two_prompts_of_guidance_share_what_they_have_in_common() -> None:
    long = b"one two three four five six seven "
    record, engine = run("guidance", max_tokens=1, prompt=long, params={"negative": long.decode() + "eight"})
    computed = record.request.usage.computed_tokens
    in_blocks = len(long) // 4 * 4
    assert computed == len(long) + 1 + len(long) + len("eight") - in_blocks, "blocks in common are computed once"
    assert engine.peak_blocks == -(-len(long) // 4) + -(-(len(long) + 5) // 4) - in_blocks // 4


@pytest.mark.parametrize("seed", range(6))
def test_best_of_returns_the_likeliest_of_what_parallel_samples(seed: int) -> None:
    sampled, _ = run("parallel", seed=seed, n=5, max_tokens=9, top_logprobs=0)
    means = [
        float(np.mean([token.logprob or 0.0 for delta in sampled.of(choice) for token in delta.tokens]))
        for choice in range(5)
    ]
    order = sorted(range(5), key=lambda choice: -means[choice])
    best, _ = run("best-of", seed=seed, n=2, max_tokens=9, params={"best_of": 5})
    assert best.answers() == [sampled.answers()[choice] for choice in order[:2]]


def _logprobs(model: Restricted, context: list[int]) -> Any:
    row = np.asarray(model(np.array(context, np.int32)), np.float64)
    return row - row.max() - np.log(np.exp(row - row.max()).sum())
