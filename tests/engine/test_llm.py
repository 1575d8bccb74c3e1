"""`LLM` and `AsyncLLM` as programs misuse them: from several threads, interrupted, with a prompt that is refused."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import chatserve
from chatserve.decoding import Registry
from chatserve.engine import LLM, AsyncEngine, AsyncLLM, Engine, EngineLimits, sampler
from chatserve.engine.llm import run_all
from chatserve.errors import RequestError
from chatserve.models.loading import LoadedModel
from chatserve.testing import VOCAB_SIZE, FakeRunner, RandomLogits, byte_vocabulary
from tests.engine.engines import answers, complete, request

WATCHED = tuple(str(Path(chatserve.__path__[0], part)) for part in ("kv", "decoding"))
REQUESTS = [request(b"The common beginning %d" % i, seed=i, n=1 + 2 * (i % 2), max_tokens=12) for i in range(5)]


def make_engine() -> Engine:
    sampler.warm_up(VOCAB_SIZE)
    limits = EngineLimits(40, block_size=4, num_host_blocks=40, preemption="swap")
    return Engine(FakeRunner(RandomLogits(VOCAB_SIZE, seed=3)), byte_vocabulary(), Registry.load(), limits)


@contextmanager
def interrupted_at_line(number: int) -> Iterator[None]:
    """SIGINT before the line of this number, of those of `chatserve.kv` and `chatserve.decoding` that run inside."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(WATCHED):
            return None
        lines += event == "line"
        if lines == number:
            lines += 1
            signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


@pytest.mark.parametrize("first", range(4))
def test_an_interrupt_at_any_line_leaves_the_engine_as_good_as_new(first: int) -> None:
    engine = make_engine()
    expected = answers(complete(engine, *REQUESTS))
    for number in range(100 + 7 * first, 12_000, 397):
        with pytest.raises(KeyboardInterrupt), interrupted_at_line(number):
            run_all(engine, REQUESTS)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        engine.check_integrity()
        assert engine.stats()["sequences"] == engine.stats()["blocks_used"] == 0
    assert answers(complete(engine, *REQUESTS)) == expected


def test_a_handler_of_somebody_else_s_is_left_alone() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with interrupted_at_line(500):
            complete(make_engine(), *REQUESTS)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


def test_calls_from_several_threads_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    loaded = LoadedModel(engine.runner, engine.vocabulary, None)
    monkeypatch.setattr("chatserve.engine.llm.build_engine", lambda config: (loaded, engine))
    llm = LLM()
    prompts = [f"Once upon a time {index}" for index in range(8)]
    expected = [llm.generate(prompt, max_tokens=10, seed=1) for prompt in prompts]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda prompt: llm.generate(prompt, max_tokens=10, seed=1), prompts))
    assert [answers(completions) for completions in found] == [answers(completions) for completions in expected]
    assert engine.stats()["blocks_used"] == 0


async def test_when_one_prompt_is_refused_none_is_left_running() -> None:
    llm = AsyncLLM(AsyncEngine(make_engine(), max_queue=64))
    with pytest.raises(RequestError):
        await llm.generate(["good", "", "good too"], max_tokens=200, ignore_eos=True)
    await asyncio.sleep(0)
    assert llm.engine.stats()["sequences"] == 0
    assert [len(completion.outputs) for completion in await llm.generate(["a", "b"], max_tokens=3)] == [1, 1]
    await llm.close()


async def test_a_cancelled_call_leaves_nothing_running() -> None:
    llm = AsyncLLM(AsyncEngine(make_engine(), max_queue=64))
    call = asyncio.ensure_future(llm.generate(["one", "two"], max_tokens=2000, ignore_eos=True))
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0)
    assert llm.engine.stats()["sequences"] == 0
    await llm.close()
