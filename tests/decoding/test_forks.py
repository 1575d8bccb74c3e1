"""Forks and their random streams: what they share, and how they draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chatserve.decoding import Context, Sequence, complete, derive_seed
from tests.decoding.harness import PROMPT, answer, make_engine, request, run, speak


def test_forks_made_before_their_parent_was_computed_prefill_once() -> None:
    async def fork_first(ctx: Context, prompt: Sequence, params: Any) -> None:
        forks = [prompt.fork() for _ in range(4)]
        for seq, sample in zip(forks, await ctx.sample(forks), strict=True):
            seq.append(sample)
        await ctx.sample(forks)
        ctx.publish(forks[0])

    engine = make_engine(fork_first)
    run(engine, request("fork_first", range(50)))
    assert engine.runner.num_tokens == 50 + 4  # type: ignore[attr-defined]


@pytest.mark.parametrize("max_batch_tokens", [7, 512])
def test_forks_of_forks_that_were_never_computed_prefill_each_token_once(max_batch_tokens: int) -> None:
    async def tree(ctx: Context, prompt: Sequence, params: Any) -> None:
        left, right = prompt.fork(), prompt.fork()
        left.append([1, 2, 3])
        right.append([4, 5])
        leaves = [left.fork(), right.fork(), left.fork(), right.fork()]
        for number, leaf in enumerate(leaves):
            leaf.append(10 + number)
        await ctx.sample(leaves)
        ctx.publish(leaves[0])

    engine = make_engine(tree, max_batch_tokens=max_batch_tokens)
    run(engine, request("tree", range(30)))
    assert engine.runner.num_tokens == 30 + (3 + 2) + 4  # type: ignore[attr-defined]


@pytest.mark.parametrize("end", ["free", "truncate", "both led"])
def test_who_made_a_fork_point_may_end_without_making_others_forget_who_computed_it(end: str) -> None:
    """The first fork computes the prompt, so it leads from then on; its parent, who led first, never had the KV."""

    async def stale(ctx: Context, prompt: Sequence, params: Any) -> None:
        prompt.append([7, 8])
        first, second, third = prompt.fork(), prompt.fork(), prompt.fork()
        await ctx.sample([first])
        if end == "truncate":
            prompt.truncate(40)
        else:
            prompt.free()
        await ctx.sample([second])
        if end == "both led":
            first.free()
        await ctx.sample([second, third])
        ctx.publish(third)

    engine = make_engine(stale, prefix_caching=False)
    run(engine, request("stale", range(40), max_tokens=9))
    assert engine.runner.num_tokens == 42 + 1 + 1  # type: ignore[attr-defined]


def test_siblings_draw_differently_and_a_fork_draws_as_a_request_with_the_derived_seed() -> None:
    async def third(ctx: Context, prompt: Sequence, params: Any) -> None:
        forks = [prompt.fork() for _ in range(3)]
        await complete(ctx, forks)
        assert len({tuple(seq.generated) for seq in forks}) == 3
        ctx.publish(forks[2])

    expected = answer(speak, seed=derive_seed(9, 3), max_tokens=12)
    assert answer(third, seed=9, max_tokens=12) == expected


def test_a_fork_copies_the_record_and_leaves_its_parent_alone() -> None:
    async def copy(ctx: Context, prompt: Sequence, params: Any) -> None:
        prompt.append(await ctx.sample([prompt]))
        prompt.append([7, 8])
        child = prompt.fork()
        assert (child.tokens, child.samples, child.logprob) == (prompt.tokens, prompt.samples, prompt.logprob)
        assert (child.prompt_len, child.ended) == (len(PROMPT), None)
        child.append(9)
        prompt.truncate(len(PROMPT))
        assert child.generated[1:] == [7, 8, 9]
        assert prompt.generated == []
        ctx.publish(child)

    assert answer(copy, max_tokens=9)[1:] == [7, 8, 9]


def test_a_retry_behind_taken_back_draws_is_fresh_and_behind_forced_tokens_it_is_the_same() -> None:
    async def retry(ctx: Context, prompt: Sequence, params: Any) -> None:
        [first] = await ctx.sample([prompt])
        prompt.append(5)
        prompt.truncate(len(PROMPT))
        assert (await ctx.sample([prompt])) == [first]
        drawn = []
        for _ in range(4):
            [sample] = await ctx.sample([prompt])
            drawn.append(sample.token)
            prompt.append(sample)
            prompt.truncate(len(PROMPT))
        assert len(set(drawn)) > 1
        ctx.publish(prompt)

    assert answer(retry, max_tokens=9, seed=4) == []


def test_a_sequence_named_several_times_is_one_row_and_independent_draws() -> None:
    async def repeat(ctx: Context, prompt: Sequence, params: Any) -> None:
        samples = await ctx.sample([prompt] * 16)
        assert len({sample.token for sample in samples}) > 5
        prompt.append(samples[3])
        ctx.publish(prompt)

    engine = make_engine(repeat)
    run(engine, request("repeat"))
    assert engine.runner.num_tokens == len(PROMPT)  # type: ignore[attr-defined]


def test_naming_a_sequence_with_nothing_new_costs_one_token_and_no_block() -> None:
    async def stare(ctx: Context, prompt: Sequence, params: Any) -> None:
        first = await ctx.logits([prompt])
        child = prompt.fork()
        for _ in range(3):
            assert np.array_equal(await ctx.logits([child]), first)
        ctx.publish(prompt)

    engine = make_engine(stare, num_blocks=2)
    run(engine, request("stare"))
    assert engine.runner.num_tokens == len(PROMPT) + 3  # type: ignore[attr-defined]
