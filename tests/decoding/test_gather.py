"""`gather` and the helpers of the library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chatserve.decoding import Context, Sample, Sequence, common_length, complete
from chatserve.testing import VOCAB_SIZE, RandomLogits
from tests.decoding.harness import PROMPT, answer, make_engine, request, run, speak


def test_gathered_searches_advance_in_lockstep_and_nest() -> None:
    order: list[tuple[str, int]] = []

    async def walk(ctx: Context, seq: Sequence, name: str, length: int) -> str:
        for step in range(length):
            order.append((name, step))
            seq.append(await ctx.sample([seq]))
        return name

    async def both(ctx: Context, prompt: Sequence, params: Any) -> None:
        a, b, c = prompt.fork(), prompt.fork(), prompt.fork()
        inner = ctx.gather(walk(ctx, b, "b", 3), walk(ctx, c, "c", 1))
        results = await ctx.gather(walk(ctx, a, "a", 2), inner, ctx.sample([prompt]))
        assert results[:2] == ["a", ["b", "c"]]
        assert isinstance(results[2][0], Sample)
        ctx.publish(a)

    engine = make_engine(both)
    run(engine, request("both", max_tokens=9, ignore_eos=True))
    assert order == [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 1), ("b", 2)]
    assert engine.statistics.num_steps == 3


def test_the_first_error_in_a_gather_closes_the_others_and_goes_up() -> None:
    closed = []

    async def patient(ctx: Context, seq: Sequence, name: str) -> None:
        try:
            while True:
                await ctx.sample([seq])
        finally:
            closed.append(name)

    async def hasty(ctx: Context, seq: Sequence) -> None:
        await ctx.sample([seq])
        raise LookupError("enough")

    async def parent(ctx: Context, prompt: Sequence, params: Any) -> None:
        with pytest.raises(LookupError, match="enough"):
            await ctx.gather(patient(ctx, prompt, "a"), hasty(ctx, prompt), patient(ctx, prompt, "b"))
        assert closed == ["a", "b"]
        prompt.append(await ctx.sample([prompt]))
        ctx.publish(prompt)

    assert len(answer(parent)) == 1


def test_completing_stops_each_sequence_where_it_is_told() -> None:
    async def until(ctx: Context, prompt: Sequence, params: Any) -> None:
        forks = [prompt.fork() for _ in range(3)]
        await complete(ctx, forks, until=lambda seq: seq.num_generated == 4 or seq.tokens[-1] < 80)
        assert all(seq.ended or seq.num_generated == 4 or seq[-1] < 80 for seq in forks)
        assert all(token >= 80 for seq in forks for token in seq.generated[:-1])
        ctx.publish(forks[0])

    assert answer(until, max_tokens=20)


def test_common_length_counts_generated_tokens() -> None:
    async def compare(ctx: Context, prompt: Sequence, params: Any) -> None:
        prompt.append([1, 2])
        first, second = prompt.fork(), prompt.fork()
        first.append([3, 4])
        second.append([3, 5, 6])
        assert common_length([first]) == 4
        assert common_length([first, second]) == 3
        assert common_length([first, second, prompt]) == 2
        ctx.publish(prompt)

    assert answer(compare) == [1, 2]


def test_random_logits_are_asked_for_the_exact_context() -> None:
    """Greedy through the decoder API is the argmax of the function itself."""
    logits = RandomLogits(VOCAB_SIZE, seed=77)
    generated = answer(speak, logits=logits, temperature=0, max_tokens=10, ignore_eos=True)
    context = list(PROMPT)
    for token in generated:
        assert token == logits(np.array(context, np.int32)).argmax()
        context.append(token)
