"""Random decoders under pressure: every answer equals the naive reference, alone and among others in a small pool."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatserve.decoding import Context, Decoder, Params, Sampling, Sequence, decoder
from chatserve.testing import VOCAB_SIZE, RandomLogits
from tests.decoding.chaos import Chaos, Script, difference, scripts
from tests.decoding.harness import CheckedEngine, assert_empty, make_engine, request, run
from tests.decoding.naive import NaiveContext, run_naively

MODEL = RandomLogits(VOCAB_SIZE, seed=11, end_token_ids=(65, 66, 256), end_bias=9.0)
MAX_TOKENS = 18

samplings = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 3),
        "temperature": st.sampled_from([0.0, 0.7, 1.0]),
        "top_k": st.sampled_from([0, 0, 2, 5]),
        "top_p": st.sampled_from([1.0, 1.0, 0.8]),
        "min_p": st.sampled_from([0.0, 0.0, 0.1]),
        "presence_penalty": st.sampled_from([0.0, 0.0, 1.0]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, 0.5]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 1.2]),
        "min_tokens": st.sampled_from([0, 0, 3]),
        "logit_bias": st.sampled_from([{}, {}, {66: -1.5, 256: 2.0}]),
    }
)


@dataclass
class Player:
    """One request of a chaos test: what it plays, how it samples, and when it arrives."""

    script: Script
    sampling: dict[str, Any]
    prompt_len: int
    arrival: int
    leaves_after: int | None = None
    chaos: list[Chaos] = field(default_factory=list)

    @property
    def prompt(self) -> list[int]:
        return [65 + (position * position) % 3 % 2 for position in range(self.prompt_len)]

    def reference(self, block_size: int) -> Chaos:
        sampling = Sampling(**self.sampling)
        context = NaiveContext(MODEL, sampling, MAX_TOKENS)
        chaos = Chaos(self.script, block_size)
        run_naively(chaos.play(context, context.prompt(self.prompt)))
        return chaos


players = st.builds(
    Player, script=scripts, sampling=samplings, prompt_len=st.integers(1, 20), arrival=st.integers(0, 12)
)
leavers = st.builds(
    Player,
    script=scripts,
    sampling=samplings,
    prompt_len=st.integers(1, 20),
    arrival=st.integers(0, 12),
    leaves_after=st.integers(0, 12),
)


def as_decoder(name: str, chaos: Chaos) -> Decoder:
    async def play(ctx: Context, prompt: Sequence, params: Any) -> None:
        ctx.publish(await chaos.play(ctx, prompt))

    return decoder(name, params=Params, sequences=lambda params, n: 1)(play)


def shock(engine: CheckedEngine, kind: int) -> None:
    """What the scheduler does when blocks run out, at a time of our own: preempt a request, or release idle KV."""
    running = engine.scheduler.running
    if kind and running:
        engine.scheduler.preempt(running[kind % len(running)])
    else:
        engine.scheduler._release_idle()


def draw_shocks(seed: int, rate: float) -> tuple[int | None, ...]:
    """At which of the first steps there is a shock, and of what kind."""
    choices = random.Random(seed)
    return tuple(choices.randrange(7) if choices.random() < rate else None for _ in range(120))


def perform(
    given: list[Player], block_size: int, shocks: tuple[int | None, ...] = (), **limits: int
) -> tuple[list[Chaos], CheckedEngine]:
    """Play all in one engine, each from its arrival on; the pool is empty afterwards."""
    made = [Chaos(player.script, block_size) for player in given]
    decoders = [as_decoder(f"chaos-{index}", chaos) for index, chaos in enumerate(made)]
    engine = make_engine(*decoders, logits=MODEL, block_size=block_size, **limits)
    running: dict[int, Any] = {}
    heard: list[list[Any]] = [[] for _ in given]
    step = 0
    while len(running) < len(given) or engine.has_work:
        for index, player in enumerate(given):
            if player.arrival == step:
                fields = {"max_tokens": MAX_TOKENS, **player.sampling}
                running[index] = engine.submit(request(f"chaos-{index}", player.prompt, **fields), heard[index].append)
        if step < len(shocks) and (kind := shocks[step]) is not None:
            shock(engine, kind)
            engine.check_integrity()
        begun = engine.begin_step()
        for index, player in enumerate(given):
            if player.leaves_after is not None and step == player.arrival + player.leaves_after:
                engine.abort(running[index])
        if begun is not None:
            begun.run()
            engine.end_step(begun)
        engine.check_integrity()
        step += 1
    for player, news in zip(given, heard, strict=True):
        assert player.leaves_after is not None or news[-1] is None, news[-1]
    assert_empty(engine)
    return made, engine


@given(player=players, block_size=st.sampled_from([1, 4, 16]))
@settings(max_examples=60)
def test_every_answer_is_what_the_documentation_says(player: Player, block_size: int) -> None:
    [played], _ = perform([player], block_size, num_blocks=2000 // block_size)
    expected = player.reference(block_size)
    assert difference(played.log, expected.log, 2e-3) == ""


@given(
    given=st.lists(st.one_of(players, players, players, leavers), min_size=2, max_size=4),
    block_size=st.sampled_from([1, 2, 4, 16]),
    max_batch_tokens=st.sampled_from([1, 2, 5, 16, 512]),
    share=st.sampled_from([0.25, 0.4, 0.6, 1.0]),
    shocks=st.builds(draw_shocks, st.integers(0, 999), st.sampled_from([0.0, 0.1, 0.3])),
)
@settings(max_examples=40)
def test_pressure_and_company_change_no_answer(
    given: list[Player], block_size: int, max_batch_tokens: int, share: float, shocks: tuple[int | None, ...]
) -> None:
    """The pool has room for a share of what one await of the hungriest request needs without sharing a block.

    In smaller pools a request may run out of blocks and end early; until then its answers must be the same.
    """
    alone = [perform([player], block_size, num_blocks=4000 // block_size)[0][0] for player in given]
    hungriest = max(chaos.peak for chaos in alone)
    least = max((player.prompt_len + block_size) // block_size for player in given)
    num_blocks = max(int(share * hungriest), least) + 1
    limits = {"num_blocks": num_blocks, "max_batch_tokens": max_batch_tokens}
    together, engine = perform(given, block_size, shocks, **limits)
    num_exhausted = engine.stats()["requests_exhausted"]
    assert share < 1 or num_exhausted == 0
    num_short = 0
    for player, one, other in zip(given, together, alone, strict=True):
        assert difference(one.log, other.log[: len(one.log)]) == ""
        num_short += len(one.log) < len(other.log) and player.leaves_after is None
    assert num_short <= num_exhausted


@pytest.mark.parametrize("max_batch_tokens", [1, 2, 512])
@pytest.mark.parametrize("is_idle_freed", [False, True])
def test_blocks_that_wait_for_a_copy_exhaust_nobody(max_batch_tokens: int, is_idle_freed: bool) -> None:
    """Writing behind the shared block copies it, and the idle fork's half is back only once the copy has run."""

    async def tight(ctx: Context, prompt: Sequence, params: Any) -> None:
        await ctx.sample([prompt])
        idle = prompt.fork()
        prompt.append(5)
        if is_idle_freed:
            idle.free()
        other = ctx.sequence([9])
        await ctx.sample([prompt, other])
        prompt.append([6, 7])
        ctx.publish(prompt)

    engine = make_engine(tight, num_blocks=2, max_batch_tokens=max_batch_tokens)
    [completion] = run(engine, request("tight", [1, 2], max_tokens=8))
    assert completion.outputs[0].token_ids == [5, 6, 7]
    assert engine.stats()["requests_exhausted"] == 0


def test_a_block_that_waits_for_its_copy_is_not_handed_out_while_another_request_has_found_it() -> None:
    """In one step the first request copies a block that the prefix index knows, the second makes the idle holder of
    the original give it up, and the third finds it in the index."""
    filled = []

    async def copier(ctx: Context, prompt: Sequence, params: Any) -> None:
        for _ in range(7):
            await ctx.sample([prompt])  # the third request is admitted meanwhile, and gets no budget
        fillers = [ctx.sequence([200 + number]) for number in range(6)]
        for filler in fillers:
            await ctx.sample([filler])  # a block each, until one is left
        prompt.append(50)
        await ctx.sample([prompt])
        filled.append(True)  # the block is full and in the index
        prompt.fork()
        prompt.truncate(7)
        prompt.append(60)
        await ctx.sample([prompt])
        ctx.publish(prompt)

    async def grower(ctx: Context, prompt: Sequence, params: Any) -> None:
        while not filled:
            await ctx.sample([prompt])
        prompt.append(1)
        await ctx.sample([prompt])
        ctx.publish(prompt)

    engine = make_engine(copier, grower, num_blocks=10, max_batch_tokens=2)
    prompt = list(range(10, 17))
    heard: list[Any] = []
    for name, tokens in (("copier", prompt), ("grower", [1, 2, 3, 4])):
        engine.submit(request(name, tokens, max_tokens=9), heard.append)
    for _ in range(8):
        engine.step()
    engine.submit(request("greedy", [*prompt, 50, *range(100, 108)], max_tokens=3), heard.append)
    while engine.step():
        pass
    assert heard.count(None) == 3
    assert_empty(engine)
