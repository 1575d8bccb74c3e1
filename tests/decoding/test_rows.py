"""What a row holds: the same bits whatever else is asked for, at every position, for every kind of sequence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from chatserve.decoding import Context, Sampling, Sequence
from chatserve.engine import PublishedToken
from chatserve.testing import END_TOKEN_ID, VOCAB_SIZE
from tests.decoding.chaos import difference
from tests.decoding.harness import PROMPT, assert_empty, make_engine, model, request, run
from tests.decoding.naive import log_softmax, processed

Rows: TypeAlias = Callable[[Context, Sequence], Awaitable[Any]]

PROCESSING: list[dict[str, Any]] = [
    {},
    {"presence_penalty": 2.0},
    {"frequency_penalty": -1.0},
    {"repetition_penalty": 1.7},
    {"logit_bias": {1: 0.5, END_TOKEN_ID: 3.0}},
    {"min_tokens": 4, "max_tokens": 9},
]

ROWS: dict[str, Rows] = {
    "raw": lambda ctx, seq: ctx.logits([seq], last=3, stage="raw"),
    "processed": lambda ctx, seq: ctx.logits([seq], last=3),
    "warped": lambda ctx, seq: ctx.logits([seq], last=3, stage="warped"),
    "raw score": lambda ctx, seq: ctx.score([seq], [[5, END_TOKEN_ID, 7]], "raw"),
    "score": lambda ctx, seq: ctx.score([seq], [[5, END_TOKEN_ID, 7]]),
    "topk": lambda ctx, seq: _best(ctx, seq),
}


async def _best(ctx: Context, seq: Sequence) -> Any:
    top = await ctx.topk([seq], 4)
    return [top.tokens, top.logprobs]


def expected_row(tokens: list[int], prompt_len: int, fields: dict[str, Any]) -> Any:
    """Log-probabilities, stage *processed*, by the documentation."""
    row = processed(model()(np.array(tokens, np.int32)), Sampling(**fields), tokens, prompt_len)
    if max(0, len(tokens) - prompt_len) < fields.get("min_tokens", 0):
        row[END_TOKEN_ID] = -np.inf
    return log_softmax(row)


@pytest.mark.parametrize("max_batch_tokens", [3, 512])
@pytest.mark.parametrize("fields", PROCESSING, ids=str)
def test_rows_of_the_prompt_are_processed_as_if_only_the_tokens_before_were_there(
    fields: dict[str, Any], max_batch_tokens: int
) -> None:
    async def look(ctx: Context, prompt: Sequence, params: Any) -> None:
        prompt.append([72, 5, 5])
        [rows] = await ctx.logits([prompt], last=len(prompt))
        for length, row in enumerate(rows, 1):
            assert np.allclose(row, expected_row(prompt[:length], prompt.prompt_len, fields), atol=1e-4), length
        ctx.publish(prompt)

    run(make_engine(look, max_batch_tokens=max_batch_tokens), request("look", **fields))


@pytest.mark.parametrize("fields", PROCESSING, ids=str)
@pytest.mark.parametrize("suffix", [[], [5], [9, 5]], ids=str)
def test_a_child_prompt_has_rows_of_its_own_beside_its_parent(suffix: list[int], fields: dict[str, Any]) -> None:
    """With an empty suffix the tokens are the same, but none of the child's are generated."""

    async def family(ctx: Context, prompt: Sequence, params: Any) -> None:
        prompt.append([5, 5, 5])
        child = ctx.sequence(suffix, parent=prompt)
        orders = [[prompt, child], [child, prompt], [child], [prompt.fork(), child, child.fork()]]
        for order in orders:
            rows = await ctx.logits(order)
            for seq, row in zip(order, rows[:, 0], strict=True):
                prompt_len = len(PROMPT) if seq.prompt_len == len(PROMPT) else len(prompt) + len(suffix)
                assert np.allclose(row, expected_row(seq.tokens, prompt_len, fields), atol=1e-4)
        ctx.publish(prompt)

    run(make_engine(family), request("family", **fields))


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_the_same_bits_whoever_is_in_the_batch(name: str) -> None:
    found: list[Any] = []

    async def look(ctx: Context, prompt: Sequence, params: Any) -> None:
        prompt.append([5, 6])
        found.append(await ROWS[name](ctx, prompt))
        ctx.publish(prompt)

    neighbours = [request("sampling", seed=seed, max_tokens=3, **PROCESSING[1 + seed]) for seed in range(3)]
    asked = request("look", presence_penalty=0.5, repetition_penalty=1.2)
    for max_batch_tokens, others in ((512, []), (512, neighbours), (1, []), (3, neighbours)):
        run(make_engine(look, max_batch_tokens=max_batch_tokens), *others, asked, *others)
    for other in found[1:]:
        assert difference(found[0], other) == ""


@pytest.mark.parametrize("fields", PROCESSING, ids=str)
def test_rows_are_the_same_bits_whatever_else_is_awaited_with_them(fields: dict[str, Any]) -> None:
    async def look(ctx: Context, prompt: Sequence, params: Any) -> None:
        prompt.append([5, 6])
        alone = [await rows(ctx, prompt) for rows in ROWS.values()]
        together = await ctx.gather(*(rows(ctx, prompt) for rows in ROWS.values()))
        backwards = await ctx.gather(*(rows(ctx, prompt) for rows in reversed(ROWS.values())))
        assert difference(alone, together) == difference(alone, backwards[::-1]) == ""
        ctx.publish(prompt)

    run(make_engine(look), request("look", **fields))


# awaits of nothing


@pytest.mark.parametrize("top_logprobs", [None, 5])
def test_awaiting_nothing_gives_empty_answers_of_the_documented_shapes(top_logprobs: int | None) -> None:
    async def nothing(ctx: Context, prompt: Sequence, params: Any) -> None:
        assert [await ctx.sample([]), await ctx.verify([], []), await ctx.score([], [])] == [[], [], []]
        for k in (1, 3, VOCAB_SIZE + 1):
            top = await ctx.topk([], k)
            assert top.tokens.shape == top.logprobs.shape == (0, min(k, VOCAB_SIZE))
        for stage in ("raw", "processed", "warped"):
            rows = await ctx.logits([], last=1, stage=stage)
            assert (rows.shape, rows.dtype.name) == ((0, 1, VOCAB_SIZE), "float32")
        assert await ctx.gather() == []
        assert await ctx.gather(ctx.sample([]), ctx.sample([])) == [[], []]
        ctx.publish(prompt)

    engine = make_engine(nothing)
    run(engine, request("nothing", top_logprobs=top_logprobs))
    assert engine.statistics.num_steps == 0


def test_the_best_of_nothing_has_the_documented_types() -> None:
    async def nothing(ctx: Context, prompt: Sequence, params: Any) -> None:
        top = await ctx.topk([], 2)
        assert (top.tokens.dtype.name, top.logprobs.dtype.name) == ("int64", "float32")
        ctx.publish(prompt)

    run(make_engine(nothing), request("nothing"))


# extremes


@pytest.mark.parametrize(
    "temperature",
    [
        0,
        1e-30,
        *(pytest.param(tiny) for tiny in (1e-44, 1e-46, 5e-324)),
    ],
)
def test_a_tiny_temperature_leaves_the_best_token_alone(temperature: float) -> None:
    async def cold(ctx: Context, seq: Sequence, params: Any) -> None:
        best = int((await ctx.topk([seq], 1)).tokens[0, 0])
        [[row]] = await ctx.logits([seq], stage="warped")
        assert (row[best], np.isneginf(row).sum()) == (0.0, VOCAB_SIZE - 1)
        [sample] = await ctx.sample([seq])
        assert sample.token == best
        ctx.publish(seq)

    run(make_engine(cold), request("cold", temperature=temperature))


# log-probabilities of the prompt


def prompt_logprobs(prompt: list[int], num_top: int, **fields: Any) -> list[PublishedToken]:
    """Those of a sampling request, which gets its three tokens."""
    engine = make_engine(num_blocks=600)
    heard: list[Any] = []
    asked = request("sampling", prompt, prompt_logprobs=num_top, max_tokens=3, ignore_eos=True, **fields)
    submitted = engine.submit(asked, heard.append)
    while engine.step():
        pass
    assert heard[-1] is None
    assert submitted.usage.completion_tokens == 3
    assert_empty(engine)
    assert submitted.prompt_logprobs is not None
    return submitted.prompt_logprobs


@pytest.mark.parametrize("num_top", [0, 1, 3])
@pytest.mark.parametrize("prompt", [[9], [9, 10], list(range(40))], ids=len)
@pytest.mark.parametrize("fields", [{}, {"top_logprobs": 2, "presence_penalty": 1.0}], ids=str)
def test_prompt_logprobs_are_the_models_own_with_as_many_alternatives_as_asked(
    prompt: list[int], num_top: int, fields: dict[str, Any]
) -> None:
    first, *rest = prompt_logprobs(prompt, num_top, **fields)
    assert (first.token_id, first.logprob, first.top) == (prompt[0], None, ())
    assert [token.token_id for token in rest] == prompt[1:]
    for position, token in enumerate(rest, 1):
        row = log_softmax(model()(np.array(prompt[:position], np.int32)))
        assert token.logprob == pytest.approx(row[prompt[position]], abs=1e-4)
        assert [other.token_id for other in token.top] == np.argsort(-row, kind="stable")[:num_top].tolist()
        assert [other.logprob for other in token.top] == pytest.approx(np.sort(row)[::-1][:num_top], abs=1e-4)


@pytest.mark.parametrize("length", [1100, 2000])
def test_prompt_logprobs_of_a_long_prompt_leave_rows_for_the_answer(length: int) -> None:
    assert len(prompt_logprobs([position % 200 for position in range(length)], 0)) == length
