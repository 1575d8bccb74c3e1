"""Steps foreseen while the one before runs: used where nothing else comes about, and never another step for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatserve.decoding import Context, Sequence
from chatserve.engine import AsyncEngine, Engine, GenerationRequest
from chatserve.engine.step import Step
from chatserve.models.batch import Batch
from tests.decoding.chaos import difference
from tests.decoding.harness import Body, make_engine, request, run
from tests.decoding.test_chaos import Player, draw_shocks, leavers, perform, players
from tests.engine.engines import answers

Between: TypeAlias = Callable[[Engine, int], None]
EVENT = 6
"""The step at which something happens."""


class Seen(NamedTuple):
    """One step: what ran, whether it was foreseen, and the engine's counters."""

    batch: list[Any]
    is_foreseen: bool
    counts: dict[str, float]


def contents(batch: Batch, block_size: int) -> list[Any]:
    """All that a batch says; of the tables what the context reaches."""
    arrays = (batch.token_ids, batch.positions, batch.slots, batch.query_starts, batch.context_lens, batch.wanted)
    num_blocks = (-(-batch.context_lens // block_size)).tolist()
    tables = [line[:count] for line, count in zip(batch.block_tables.tolist(), num_blocks, strict=True)]
    return [*((array.tolist(), str(array.dtype)) for array in arrays), batch.copies.tolist(), tables]


def note(engine: Engine, step: Step, num_foreseen: int) -> Seen:
    counts = {name: value for name, value in engine.stats().items() if not name.startswith("seconds_")}
    is_foreseen = engine._batches.num_foreseen > num_foreseen
    return Seen(contents(step.batch, engine.pool.block_size), is_foreseen, counts)


def foresee(engine: Engine) -> None:
    """Foresee; nothing that anybody else could see may change."""
    before = (engine.stats(), engine.pool.idle_blocks(), engine.pool.ref_counts.tolist())
    engine.foresee()
    assert (engine.stats(), engine.pool.idle_blocks(), engine.pool.ref_counts.tolist()) == before
    engine.check_integrity()


def drive(
    engine: Engine, is_foreseeing: bool, before: Between | None = None, during: Between | None = None
) -> list[Seen]:
    """Run to the end; `before` is called before each step, `during` while it runs."""
    steps: list[Seen] = []
    while True:
        if before is not None:
            before(engine, len(steps))
        num_foreseen = engine._batches.num_foreseen
        step = engine.begin_step()
        if step is None:
            return steps
        engine.check_integrity()
        steps.append(note(engine, step, num_foreseen))
        if is_foreseeing:
            foresee(engine)
        if during is not None:
            during(engine, len(steps) - 1)
        step.run()
        engine.end_step(step)
        engine.check_integrity()


# decoders that do something else at the step EVENT: the step 0 is the prefill


async def steady(ctx: Context, prompt: Sequence, params: Any) -> None:
    for _ in range(14):
        prompt.append(await ctx.sample([prompt]))
    ctx.publish(prompt)


def turning(turn: Callable[[Context, Sequence, Any], Any]) -> Body:
    """Steady, but with `turn` given the answer of the step before EVENT."""

    async def body(ctx: Context, prompt: Sequence, params: Any) -> None:
        for _ in range(EVENT - 1):
            prompt.append(await ctx.sample([prompt]))
        sequences = await turn(ctx, prompt, await ctx.sample([prompt]))
        for _ in range(4 if sequences else 0):
            for sequence, sample in zip(sequences, await ctx.sample(sequences), strict=True):
                sequence.append(sample)
        ctx.publish(prompt)

    body.__name__ = turn.__name__
    return body


async def fork(ctx: Context, prompt: Sequence, samples: Any) -> list[Sequence]:
    prompt.append(samples)
    other = prompt.fork()
    other.append(65)
    return [prompt, other]


async def fork_and_keep_idle(ctx: Context, prompt: Sequence, samples: Any) -> list[Sequence]:
    """The next token is written behind a shared block, which is copied."""
    prompt.fork()
    prompt.append(samples)
    return [prompt]


async def truncate(ctx: Context, prompt: Sequence, samples: Any) -> list[Sequence]:
    prompt.append(samples)
    prompt.truncate(len(prompt) - 3)
    return [prompt]


async def retype(ctx: Context, prompt: Sequence, samples: Any) -> list[Sequence]:
    """As long as foreseen, with other KV in the end."""
    prompt.append(samples)
    prompt.truncate(len(prompt) - 3)
    prompt.append([65, 66, 67])
    return [prompt]


async def replace(ctx: Context, prompt: Sequence, samples: Any) -> list[Sequence]:
    """Another token than drawn, in the same place."""
    prompt.append(samples)
    prompt.truncate(len(prompt) - 1)
    prompt.append(65)
    return [prompt]


async def take_back(ctx: Context, prompt: Sequence, samples: Any) -> list[Sequence]:
    """A draw as plain as before, but of a shorter sequence."""
    prompt.append(samples)
    other = 65 if prompt[-3] != 65 else 66
    prompt.truncate(len(prompt) - 3)
    prompt.append(other)
    return [prompt]


async def append_two(ctx: Context, prompt: Sequence, samples: Any) -> list[Sequence]:
    prompt.append([samples[0], 65])
    return [prompt]


async def take_another(ctx: Context, prompt: Sequence, samples: Any) -> list[Sequence]:
    """A sequence as long as the one foreseen, in its place."""
    prompt.append(samples)
    return [ctx.sequence([*prompt[1:], 65])]


async def look_at_best(ctx: Context, prompt: Sequence, samples: Any) -> list[Sequence]:
    prompt.append(samples)
    top = await ctx.topk([prompt], 2)
    prompt.append(top.sample(0, 1))
    return [prompt]


async def end(ctx: Context, prompt: Sequence, samples: Any) -> list[Sequence]:
    prompt.append(samples)
    return []


async def fail(ctx: Context, prompt: Sequence, samples: Any) -> list[Sequence]:
    raise ValueError("on purpose")


TURNS = {
    fork: False,
    fork_and_keep_idle: True,
    truncate: False,
    retype: False,
    replace: True,
    take_back: False,
    append_two: False,
    take_another: False,
    look_at_best: False,
    end: False,
    fail: False,
}


def flags(steps: list[Seen]) -> str:
    return "".join("f" if step.is_foreseen else "." for step in steps)


def compared(make: Callable[[], Engine], *between: Between | None) -> list[Seen]:
    """Steps of an engine that foresees; one that does not must have had the same."""
    with_it, without = drive(make(), True, *between), drive(make(), False, *between)
    assert [step._replace(is_foreseen=False) for step in with_it] == without
    return with_it


def start(*names: str, bodies: tuple[Body, ...] = (), **limits: Any) -> Engine:
    engine = make_engine(steady, *bodies, **{"prefix_caching": False, **limits})
    for index, name in enumerate(names):
        prompt = range(10 * index, 10 * index + 5)
        engine.submit(request(name, prompt, seed=index, max_tokens=40, ignore_eos=True), lambda news: None)
    return engine


def test_all_steps_but_the_first_decode_are_foreseen() -> None:
    """Block boundaries included: with blocks of 1 and of 4 tokens every one, or every fourth, takes a block."""
    for block_size in (1, 4):
        steps = compared(lambda size=block_size: start("steady", "steady", block_size=size))  # type: ignore[misc]
        assert flags(steps) == ".." + "f" * 12


@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn.__name__)
def test_what_a_decoder_does_instead(turn: Any) -> None:
    body = turning(turn)
    steps = compared(lambda: start("steady", turn.__name__, bodies=(body,)))
    assert flags(steps)[:EVENT] == "..ffff"
    assert steps[EVENT].is_foreseen == TURNS[turn]
    assert "ff" in flags(steps)[EVENT + 1 :], "and again afterwards"


def test_sequences_that_change_places() -> None:
    """Of the same length, so that only their names differ."""

    async def twins(ctx: Context, prompt: Sequence, params: Any) -> None:
        sequences = [prompt, ctx.sequence([*prompt[1:], 65])]
        for step in range(10):
            for sequence, sample in zip(sequences, await ctx.sample(sequences), strict=True):
                sequence.append(sample)
            if step == EVENT - 1:
                sequences.reverse()
        ctx.publish(prompt)

    steps = compared(lambda: start("twins", bodies=(twins,)))
    assert flags(steps) == "..ffff.fff"


def test_a_copied_block_is_written_where_it_is() -> None:
    body = turning(fork_and_keep_idle)
    steps = compared(lambda: start("fork_and_keep_idle", bodies=(body,)))
    assert steps[EVENT].is_foreseen
    assert len(steps[EVENT].batch[6]) == 1, "one copy"


def leave(engine: Engine, step: int) -> None:
    if step == EVENT:
        engine.abort(next(iter(engine.requests)))


def give_way(engine: Engine, step: int) -> None:
    if step == EVENT:
        engine.scheduler.preempt(engine.scheduler.running[-1])


def come(engine: Engine, step: int) -> None:
    if step == EVENT:
        engine.submit(request("steady", range(90, 99), seed=9, max_tokens=40, ignore_eos=True), lambda news: None)


@pytest.mark.parametrize("event", [leave, give_way, come])
@pytest.mark.parametrize("is_during", [False, True])
def test_what_happens_between_or_during_steps(event: Between, is_during: bool) -> None:
    between = (None, event) if is_during else (event, None)
    steps = compared(lambda: start("steady", "steady", "steady"), *between)
    place = EVENT + is_during
    assert flags(steps)[:place] == "..ffffff"[:place]
    assert not steps[place].is_foreseen
    assert "ff" in flags(steps)[place + 1 :]


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
@pytest.mark.parametrize("num_blocks", [7, 9, 11])
def test_a_pool_that_is_nearly_full(num_blocks: int, preemption: str) -> None:
    """Each of three requests grows to 5 blocks of 4 tokens."""
    limits: dict[str, Any] = {"num_blocks": num_blocks, "preemption": preemption, "num_host_blocks": 30}
    steps = compared(lambda: start("steady", "steady", "steady", **limits))
    assert steps[-1].counts["preemptions"] > 0
    assert flags(steps).count("f") > 10


@pytest.mark.parametrize("max_batch_tokens", [1, 2, 3])
def test_a_budget_smaller_than_all_draws(max_batch_tokens: int) -> None:
    compared(lambda: start("steady", "steady", "steady", max_batch_tokens=max_batch_tokens))


def test_chunks_of_a_long_prompt_beside_draws() -> None:
    def arrive(engine: Engine, step: int) -> None:
        if step == EVENT:
            engine.submit(request("steady", range(60), seed=9, max_tokens=40, ignore_eos=True), lambda news: None)

    steps = compared(lambda: start("steady", "steady", max_batch_tokens=18), arrive)
    assert (
        flags(steps) == "..ffff" + "...." + ".fff" + ".ffffffff"
    )  # four chunks; with the newcomer; without the others


class _Watch:
    """Patches engines so that they note their steps, and foresee some of them at random, or none."""

    def __init__(self, patch: pytest.MonkeyPatch, seed: int | None) -> None:
        self.steps: list[Seen] = []
        choices = random.Random(seed)
        begin_step = Engine.begin_step

        def watched(engine: Engine) -> Step | None:
            num_foreseen = engine._batches.num_foreseen
            step = begin_step(engine)
            if step is not None:
                self.steps.append(note(engine, step, num_foreseen))
                if seed is not None and choices.random() < 0.9:
                    foresee(engine)
            return step

        patch.setattr(Engine, "begin_step", watched)


@given(
    given=st.lists(st.one_of(players, players, leavers), min_size=1, max_size=4),
    block_size=st.sampled_from([1, 2, 4, 16]),
    max_batch_tokens=st.sampled_from([2, 5, 16, 512]),
    num_tokens=st.sampled_from([60, 120, 4000]),
    shocks=st.builds(draw_shocks, st.integers(0, 999), st.sampled_from([0.0, 0.1])),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_random_decoders_run_the_same_steps(
    given: list[Player],
    block_size: int,
    max_batch_tokens: int,
    num_tokens: int,
    shocks: tuple[int | None, ...],
    seed: int,
) -> None:
    limits = {"num_blocks": 24 + num_tokens // block_size, "max_batch_tokens": max_batch_tokens}
    played = []
    for chosen in (None, seed):
        with pytest.MonkeyPatch.context() as patch:
            watch = _Watch(patch, chosen)
            made, _ = perform(given, block_size, shocks, **limits)
            played.append(([chaos.log for chaos in made], [step._replace(is_foreseen=False) for step in watch.steps]))
    assert difference(played[0][0], played[1][0]) == ""
    assert played[0][1] == played[1][1]


async def served(server: AsyncEngine, *requests: GenerationRequest) -> list[str]:
    """The texts of requests that a server answers together."""
    generations = await server.submit_all(requests)
    return ["".join([delta.text async for delta in generation]) for generation in generations]


async def test_a_server_foresees_and_answers_the_same() -> None:
    requests = [
        request(prompt=range(index, index + 9), seed=index, max_tokens=24, ignore_eos=True) for index in range(6)
    ]
    expected = [text for [(_, text, _)] in answers(run(make_engine(), *requests))]
    engine = make_engine()
    server = AsyncEngine(engine)
    assert await served(server, requests[0]) == expected[:1]
    assert engine._batches.num_foreseen == 22, "all but the prompt's step and the first behind it"
    assert await served(server, *requests) == expected
    await server.shutdown(1)
