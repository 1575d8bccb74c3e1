"""The engine on an event loop: streams, cancellation, refusal, shutdown, and faults of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from chatserve.decoding import Context, Params, Registry, Sequence, decoder
from chatserve.engine import AsyncEngine, AsyncLLM, Delta, Engine, EngineLimits, Generation
from chatserve.errors import GenerationError, QueueFullError, RequestError, UnavailableError
from chatserve.testing import VOCAB_SIZE, FakeRunner, Faulty, RandomLogits, byte_vocabulary
from tests.engine.engines import MakeEngine, complete, request


@asynccontextmanager
async def running(runner: FakeRunner | None = None, max_queue: int = 64, **limits: Any) -> AsyncIterator[AsyncEngine]:
    fake = runner or FakeRunner(RandomLogits(VOCAB_SIZE, seed=3))
    sizes = EngineLimits(**{"num_blocks": 64, "block_size": 4, **limits})
    engine = AsyncEngine(Engine(fake, byte_vocabulary(), _registry(), sizes), max_queue=max_queue)
    try:
        yield engine
    finally:
        await engine.shutdown(0)


async def collect(generation: Generation) -> str:
    return "".join([delta.text async for delta in generation])


async def test_streams_run_together_and_equal_solo_runs(make_engine: MakeEngine) -> None:
    requests = [request(range(index, index + 9), seed=index, max_tokens=12) for index in range(8)]
    solo = [complete(make_engine(FakeRunner(RandomLogits(VOCAB_SIZE, seed=3))), one)[0] for one in requests]
    async with running() as engine:
        generations = [await engine.submit(one) for one in requests]
        texts = await asyncio.gather(*(collect(generation) for generation in generations))
        assert texts == [completion.outputs[0].text for completion in solo]
        assert generations[0].usage == solo[0].usage
        assert engine.stats()["blocks_used"] == 0


async def test_a_refusal_is_raised_by_submit_and_leaves_nothing() -> None:
    async with running() as engine:
        for bad in (
            request(range(5), temperature=-1.0),
            request(range(5), decoder="nobody"),
            request([]),
            request([VOCAB_SIZE]),
            request(range(5), decoder="greedy", n=2),
        ):
            with pytest.raises(RequestError):
                await engine.submit(bad)
        assert engine.stats()["blocks_used"] == 0
        assert await collect(await engine.submit(request(range(5), max_tokens=3))) != ""


async def test_cancelling_a_running_and_a_queued_request_frees_their_blocks() -> None:
    async with running(FakeRunner(RandomLogits(VOCAB_SIZE, seed=3), delay=0.002), max_running_sequences=1) as engine:
        first = await engine.submit(request(range(40), max_tokens=2000, ignore_eos=True))
        second = await engine.submit(request(range(40), max_tokens=2000, ignore_eos=True))
        async for _ in first:
            break
        assert engine.stats()["requests_waiting"] == 1
        second.cancel()
        first.cancel()
        first.cancel()
        await asyncio.sleep(0.05)
        assert engine.stats()["blocks_used"] == 0
        steps = engine.stats()["steps"]
        await asyncio.sleep(0.05)
        assert engine.stats()["steps"] == steps
        assert [delta async for delta in first] == []


async def test_a_task_that_is_cancelled_while_it_submits_leaves_nothing() -> None:
    async with running() as engine:
        for _ in range(5):
            task = asyncio.create_task(engine.submit(request(range(9), max_tokens=2000)))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0.05)
        assert engine.stats()["sequences"] == 0


async def test_the_queue_is_bounded() -> None:
    fake = FakeRunner(RandomLogits(VOCAB_SIZE, seed=3), delay=0.01)
    async with running(fake, max_queue=2, max_running_sequences=1) as engine:
        kept = [await engine.submit(request(range(5), max_tokens=2)) for _ in range(1)]
        await asyncio.sleep(0.005)
        kept += [await engine.submit(request(range(5), max_tokens=2)) for _ in range(2)]
        with pytest.raises(QueueFullError) as refused:
            await engine.submit(request(range(5), max_tokens=2))
        assert refused.value.retry_after >= 1
        await asyncio.gather(*(collect(generation) for generation in kept))


async def test_a_decoder_that_raises_ends_its_own_stream_only() -> None:
    async with running() as engine:
        broken = await engine.submit(request(range(5), decoder="breaks-later"))
        fine = await engine.submit(request(range(5), seed=1, max_tokens=10))
        with pytest.raises(GenerationError, match="ZeroDivisionError"):
            await collect(broken)
        assert len((await collect(fine)).encode()) > 0
        assert engine.stats()["blocks_used"] == 0


async def test_nan_ends_the_request_it_belongs_to_only() -> None:
    model = Faulty(RandomLogits(VOCAB_SIZE, seed=3), lambda context: len(context) == 8)
    async with running(FakeRunner(model)) as engine:
        ends = await engine.submit(request(range(4), max_tokens=10, ignore_eos=True))
        goes_on = await engine.submit(request(range(20), max_tokens=10, ignore_eos=True))
        with pytest.raises(GenerationError, match="NaN"):
            await collect(ends)
        await collect(goes_on)
        assert goes_on.usage.completion_tokens == 10


async def test_a_model_that_raises_ends_what_it_ran_and_the_engine_goes_on() -> None:
    model = Faulty(RandomLogits(VOCAB_SIZE, seed=3), lambda context: len(context) == 8, OSError("no more"))
    async with running(FakeRunner(model)) as engine:
        ends = await engine.submit(request(range(4), max_tokens=10, ignore_eos=True))
        with pytest.raises(GenerationError, match="no more"):
            await collect(ends)
        assert engine.status == "ready"
        later = await engine.submit(request(range(20), max_tokens=10, ignore_eos=True))
        await collect(later)
        assert later.usage.completion_tokens == 10


async def test_shutdown_lets_answers_finish_within_the_grace_period() -> None:
    async with running() as engine:
        generation = await engine.submit(request(range(5), max_tokens=20, ignore_eos=True))
        await engine.shutdown(5)
        assert generation.usage.completion_tokens == 20
        with pytest.raises(UnavailableError):
            await engine.submit(request(range(5)))


async def test_shutdown_ends_answers_with_an_error_after_the_grace_period() -> None:
    async with running(FakeRunner(RandomLogits(VOCAB_SIZE, seed=3), delay=0.02)) as engine:
        generation = await engine.submit(request(range(5), max_tokens=200, ignore_eos=True))
        await engine.shutdown(0.05)
        with pytest.raises(UnavailableError, match="shutting down"):
            await collect(generation)
        assert engine.stats()["blocks_used"] == 0


async def test_a_fault_of_ours_ends_every_caller_and_refuses_new_ones(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as engine:
        generations = [await engine.submit(request(range(5), max_tokens=200)) for _ in range(3)]
        engine._engine.scheduler.schedule = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        for generation in generations:
            with pytest.raises(GenerationError, match="engine has died"):
                await collect(generation)
        assert engine.status == "dead"
        with pytest.raises(UnavailableError):
            await engine.submit(request(range(5)))
    assert "the engine has died" in caplog.text


async def test_decoders_are_stepped_outside_any_task() -> None:
    async with running() as engine:
        with pytest.raises(GenerationError, match="RuntimeError"):
            await collect(await engine.submit(request(range(5), decoder="uses-asyncio-timeout")))
        assert await collect(await engine.submit(request(range(5), max_tokens=3))) != ""


async def test_async_llm_generates_and_streams() -> None:
    async with running() as engine:
        llm = AsyncLLM(engine)
        completions = await llm.generate([[1, 2, 3], [4, 5]], max_tokens=5, seed=2)
        assert [len(completion.outputs[0].token_ids) for completion in completions] == [5, 5]
        deltas: list[Delta] = [delta async for delta in llm.stream([1, 2, 3], max_tokens=5, seed=2)]
        assert "".join(delta.text for delta in deltas) == completions[0].outputs[0].text
        async for _ in llm.stream([1, 2, 3], max_tokens=2000):
            break
        await asyncio.sleep(0.05)
        assert engine.stats()["blocks_used"] == 0


@decoder("breaks-later")
async def breaks_later(ctx: Context, prompt: Sequence, params: Params) -> None:
    prompt.append(await ctx.sample([prompt]))
    ctx.publish(prompt)
    await ctx.sample([prompt])
    1 / 0  # noqa: B018


@decoder("uses-asyncio-timeout")
async def uses_asyncio_timeout(ctx: Context, prompt: Sequence, params: Params) -> None:
    await ctx.sample([prompt])
    async with asyncio.timeout(0.01):
        await ctx.sample([prompt])


def _registry() -> Registry:
    registry = Registry.load()
    for added in (breaks_later, uses_asyncio_timeout):
        registry.add(added)
    return registry
