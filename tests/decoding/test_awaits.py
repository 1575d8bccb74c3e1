"""What `verify`, `score`, `logits`, `topk`, `sample` and `draw` answer, against the model's own function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chatserve.decoding import Context, Sampling, Sequence
from chatserve.errors import DecoderError
from chatserve.testing import END_TOKEN_ID, VOCAB_SIZE, Script
from tests.decoding.harness import PROMPT, answer, make_engine, model, request, row_of, run, speak
from tests.decoding.naive import log_softmax, processed

SPECULATIVE = [
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.0},
    {"top_k": 3},
    {"top_p": 0.7},
    {"min_p": 0.05},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"repetition_penalty": 1.4},
    {"stop": ("BA", "AAB")},
    {"min_tokens": 8, "stop": ("B",)},
    {"logit_bias": {65: -2.0, 70: 6.0}},
]


@pytest.mark.parametrize("sampling", SPECULATIVE, ids=str)
def test_verified_drafts_are_what_plain_sampling_draws(sampling: dict[str, Any]) -> None:
    """Drafts of two favoured letters: some are right, most of them not to the end."""
    logits = model(end_token_ids=(65, 66, END_TOKEN_ID), end_bias=8.0)
    num_accepted = []

    async def draft(ctx: Context, seq: Sequence, params: Any) -> None:
        while not seq.ended:
            guess = [65 + (len(seq) + i) % 2 for i in range(len(seq) % 6)]
            [samples] = await ctx.verify([seq], [guess])
            num_accepted.append(len(samples) - 1)
            seq.append(samples)
            ctx.publish(seq)

    for seed in range(4):
        fields = {"seed": seed, "max_tokens": 20, **sampling}
        assert answer(draft, logits=logits, **fields) == answer(speak, logits=logits, **fields)
    assert max(num_accepted) > 0


def test_verifying_keeps_the_kv_of_what_was_agreed() -> None:
    script = Script(list(range(100, 120)), vocab_size=VOCAB_SIZE, end_token_id=END_TOKEN_ID)

    async def draft(ctx: Context, seq: Sequence, params: Any) -> None:
        while not seq.ended:
            done = seq.num_generated
            [samples] = await ctx.verify([seq], [[100 + done, 101 + done, 102 + done]])
            seq.append(samples)
        ctx.publish(seq)

    engine = make_engine(draft, logits=script)
    [completion] = run(engine, request("draft", temperature=0, max_tokens=16))
    assert completion.outputs[0].token_ids == list(range(100, 116))
    assert engine.runner.num_tokens == len(PROMPT) + 3 + 3 * 4  # type: ignore[attr-defined]


def test_scores_are_the_log_softmax_of_the_models_own_rows_and_change_nothing() -> None:
    async def judge(ctx: Context, prompt: Sequence, params: Any) -> None:
        prompt.append([3, 4])
        probe = prompt.fork()
        answers = await ctx.score([prompt, probe, prompt], [[9], [9, 8, 7], [1, 2]])
        for seq, continuation, scored in zip([prompt, probe, prompt], [[9], [9, 8, 7], [1, 2]], answers, strict=True):
            assert [sample.token for sample in scored] == continuation
            expected = [
                log_softmax(row_of(seq.tokens + continuation[:i]))[token] for i, token in enumerate(continuation)
            ]
            assert [sample.logprob for sample in scored] == pytest.approx(expected, abs=1e-4)
        assert prompt.generated == probe.generated == [3, 4]
        ctx.publish(prompt)

    assert answer(judge, max_tokens=5) == [3, 4]


@pytest.mark.parametrize("max_batch_tokens", [2, 512])
def test_log_probability_rows_of_every_stage(max_batch_tokens: int) -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": 4,
        "presence_penalty": 1.0,
        "repetition_penalty": 1.3,
        "logit_bias": {9: 5.0},
    }

    async def look(ctx: Context, prompt: Sequence, params: Any) -> None:
        prompt.append([20, 21, 20, 9])
        contexts = [prompt[:end] for end in range(len(prompt) - 2, len(prompt) + 1)]
        rows = {stage: await ctx.logits([prompt], last=3, stage=stage) for stage in ("raw", "processed", "warped")}
        assert {(row.shape, row.dtype.name) for row in rows.values()} == {((1, 3, VOCAB_SIZE), "float32")}
        for offset, tokens in enumerate(contexts):
            logits = row_of(tokens)
            assert np.allclose(rows["raw"][0, offset], log_softmax(logits), atol=1e-4)
            expected = log_softmax(processed(logits, Sampling(**fields), tokens, len(PROMPT)))
            assert np.allclose(rows["processed"][0, offset], expected, atol=1e-4)
            best = np.argsort(-expected, kind="stable")[:4]
            warped = np.full(VOCAB_SIZE, -np.inf)
            warped[best] = log_softmax(expected[best] / 0.5)
            assert np.allclose(rows["warped"][0, offset], warped, atol=1e-4)
        ctx.publish(prompt)

    run(make_engine(look, max_batch_tokens=max_batch_tokens), request("look", max_tokens=6, **fields))


def test_the_best_candidates_come_in_order_and_ties_by_lower_id() -> None:
    class Flat:
        vocab_size = VOCAB_SIZE

        def __call__(self, context: Any) -> Any:
            row = np.zeros(VOCAB_SIZE, np.float32)
            row[[200, 50]] = 3.0
            row[120] = 4.0
            return row

    async def rank(ctx: Context, prompt: Sequence, params: Any) -> None:
        for k in (5, VOCAB_SIZE):
            top = await ctx.topk([prompt, prompt], k)
            assert top.tokens.shape == top.logprobs.shape == (2, k)
            assert top.tokens[1, :5].tolist() == [120, 50, 200, 0, 1]
        assert np.allclose(top.logprobs[0, :3], log_softmax(Flat()(None))[[120, 50, 200]], atol=1e-5)
        sample = top.sample(0, 1)
        assert (sample.token, sample.logprob) == (50, top.logprobs[0, 1])
        assert [token for token, _ in sample.top] == [120, 50]
        prompt.append(sample)
        ctx.publish(prompt)

    assert answer(rank, logits=Flat(), top_logprobs=2) == [50]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0}, {"top_p": 0.6}, {"presence_penalty": 1.5}], ids=str)
def test_drawing_from_the_raw_row_is_sampling(sampling: dict[str, Any]) -> None:
    async def by_hand(ctx: Context, seq: Sequence, params: Any) -> None:
        while not seq.ended:
            [[row]] = await ctx.logits([seq], stage="raw")
            seq.append(ctx.draw(seq, row))
            ctx.publish(seq)

    fields = {"max_tokens": 12, "seed": 6, **sampling}
    assert answer(by_hand, **fields) == answer(speak, **fields)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0}, {"top_k": 2, "presence_penalty": 1.5}], ids=str)
@pytest.mark.parametrize("num_top", [None, 0, 1, 4])
def test_a_draw_by_hand_comes_with_the_alternatives_asked_for(num_top: int | None, sampling: dict[str, Any]) -> None:
    async def by_hand(ctx: Context, seq: Sequence, params: Any) -> None:
        while not seq.ended:
            [plain] = await ctx.sample([seq.fork()])
            [[row]] = await ctx.logits([seq], stage="raw")
            sample = ctx.draw(seq, row)
            expected = log_softmax(processed(row_of(seq.tokens), Sampling(**sampling), seq.tokens, len(PROMPT)))
            best = np.argsort(-expected, kind="stable")[: num_top or 0]
            assert [token for token, _ in sample.top] == best.tolist() == [token for token, _ in plain.top]
            assert [logprob for _, logprob in sample.top] == pytest.approx(expected[best], abs=1e-4)
            assert sample.logprob == pytest.approx(expected[sample.token], abs=1e-4)
            seq.append(sample)
            ctx.publish(seq)

    [completion] = run(make_engine(by_hand), request("by_hand", max_tokens=6, top_logprobs=num_top, **sampling))
    if num_top is not None:
        assert {len(token.top) for token in completion.outputs[0].tokens} == {num_top}


def test_alternatives_of_a_draw_with_ties_and_forbidden_tokens_come_by_lower_id() -> None:
    async def tie(ctx: Context, seq: Sequence, params: Any) -> None:
        row = np.full(VOCAB_SIZE, -np.inf)
        row[[200, 50]] = 3.0
        assert [token for token, _ in ctx.draw(seq, row).top] == [50, 200, 0, 1]
        ctx.publish(seq)

    answer(tie, top_logprobs=4)


@pytest.mark.parametrize("asks_for_top", [None, 3])
def test_a_row_of_which_processing_forbids_every_token_is_refused(asks_for_top: int | None) -> None:
    """The row allows the end token alone, which is impossible before `min_tokens`; afterwards it is drawn."""

    async def only_the_end(ctx: Context, seq: Sequence, params: Any) -> None:
        row = np.full(VOCAB_SIZE, -np.inf, np.float32)
        row[END_TOKEN_ID] = 2.0
        for _ in range(2):
            with pytest.raises(DecoderError, match="draw: every token is forbidden"):
                ctx.draw(seq, row)
            seq.append(65)
        assert row[END_TOKEN_ID] == 2.0  # the decoder's own array is left alone
        sample = ctx.draw(seq, row)
        assert sample[:2] == (END_TOKEN_ID, 0.0)
        assert seq.append(sample) == "stop"
        ctx.publish(seq)

    assert answer(only_the_end, min_tokens=2, max_tokens=5, top_logprobs=asks_for_top) == [65, 65, END_TOKEN_ID]


def test_overrides_hold_for_one_await_only() -> None:
    async def cool(ctx: Context, seq: Sequence, params: Any) -> None:
        [cold] = await ctx.sample([seq], temperature=0)
        [best] = await ctx.sample([seq], top_k=1)
        assert cold.token == best.token == row_of(seq.tokens).argmax()
        seq.append([cold, *await ctx.sample([seq])])
        ctx.publish(seq)

    assert len(answer(cool, max_tokens=5, temperature=1.0)) == 2
