"""Decoders on an asyncio loop: whatever they raise or await, the engine goes on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from chatserve.decoding import Context, Params, Sequence, decoder
from chatserve.engine.async_engine import AsyncEngine
from chatserve.errors import ChatserveError, DecoderError, GenerationError
from tests.decoding.company import (
    NEIGHBOURS,
    is_cancelled,
    leaves,
    panics_in_company,
    solo,
)
from tests.decoding.harness import Body, assert_empty, make_engine, request


async def _timeout(ctx: Context, prompt: Sequence, params: Any) -> None:
    async with asyncio.timeout(0.001):
        while True:
            await ctx.sample([prompt])


async def _future(ctx: Context, prompt: Sequence, params: Any) -> None:
    await asyncio.get_running_loop().create_future()


async def _sleep(ctx: Context, prompt: Sequence, params: Any) -> None:
    await ctx.sample([prompt])
    await asyncio.sleep(0.001)


async def _leave(ctx: Context, prompt: Sequence, params: Any) -> None:
    await ctx.sample([prompt])
    raise SystemExit(3)


async def _cancel(ctx: Context, prompt: Sequence, params: Any) -> None:
    await ctx.sample([prompt])
    raise asyncio.CancelledError


@pytest.mark.parametrize("body", [_timeout, _future, _sleep, _leave, _cancel], ids=lambda body: body.__name__)
async def test_asyncio_inside_a_decoder_does_not_reach_the_engine(body: Body) -> None:
    engine = AsyncEngine(make_engine(body))
    neighbour = await engine.submit(NEIGHBOURS[0])
    with pytest.raises(GenerationError, match="await|raised"):
        async for _ in await engine.submit(request(body.__name__)):
            pass
    assert [*[delta async for delta in neighbour], None] == solo(0)
    assert engine.status == "ready"
    assert engine.stats()["blocks_used"] == 0
    again = await engine.submit(NEIGHBOURS[0])
    assert [*[delta async for delta in again], None] == solo(0)
    await engine.shutdown(1)


@pytest.mark.parametrize("body", [leaves, is_cancelled, panics_in_company], ids=lambda body: body.__name__)
async def test_a_base_exception_at_once_does_not_reach_the_engine(body: Body) -> None:
    engine = AsyncEngine(make_engine(body))
    with pytest.raises(DecoderError, match="the decoder raised"):
        await engine.submit(request(body.__name__))
    assert [*[delta async for delta in await engine.submit(NEIGHBOURS[0])], None] == solo(0)
    await engine.shutdown(1)


def _fails(error: BaseException) -> Callable[[Any, int], int]:
    def sequences(params: Any, n: int) -> int:
        raise error

    return sequences


COUNTS: dict[str, Callable[..., Any]] = {
    "an error": _fails(KeyError("x")),
    "nothing": lambda params, n: None,
    "text": lambda params, n: "3",
    "a fraction": lambda params, n: 2.5,
    "no arguments": lambda: 1,
}


@pytest.mark.parametrize(
    "count",
    [
        *(pytest.param(count, id=name) for name, count in COUNTS.items()),
        pytest.param(_fails(SystemExit(3)), id="exit"),
    ],
)
async def test_a_sequences_function_that_fails_ends_its_own_request_only(count: Callable[[Any, int], int]) -> None:
    inner = make_engine(decoder("counted", sequences=count)(_sleep))
    engine = AsyncEngine(inner)
    neighbour = await engine.submit(NEIGHBOURS[0])
    with pytest.raises(DecoderError, match="decoder 'counted': its `sequences` function failed"):
        await engine.submit(request("counted"))
    assert [*[delta async for delta in neighbour], None] == solo(0)
    assert engine.status == "ready"
    await engine.shutdown(1)
    assert_empty(inner)


class Picky(Params, frozen=True):
    def __post_init__(self) -> None:
        raise LookupError("not today")


async def test_parameters_that_cannot_be_made_end_their_own_request_only() -> None:
    engine = AsyncEngine(make_engine(decoder("picky", params=Picky)(_sleep)))
    with pytest.raises(ChatserveError, match="not today"):
        await engine.submit(request("picky"))
    assert engine.status == "ready"
    await engine.shutdown(1)


_STUBBORN = """
import gc, sys, warnings
from tests.decoding.harness import make_engine, request, assert_empty

async def sample(ctx, prompt, params):
    while True:
        try:
            await ctx.sample([prompt])
        except BaseException:
            pass

async def gather(ctx, prompt, params):
    while True:
        try:
            await ctx.gather(ctx.sample([prompt]), ctx.topk([prompt], 2), sample(ctx, prompt, params))
        except BaseException:
            pass

async def everything(ctx, prompt, params):
    while True:
        try:
            await ctx.verify([prompt], [[1]])
            await ctx.score([prompt], [[1]])
            await ctx.logits([prompt])
        except BaseException:
            pass

async def finally_await(ctx, prompt, params):
    try:
        while True:
            await ctx.sample([prompt])
    finally:
        await ctx.sample([prompt])

for body in (sample, gather, everything, finally_await):
    engine = make_engine(body)
    leaving = engine.submit(request(body.__name__), lambda news: None)
    neighbour = []
    engine.submit(request("sampling", max_tokens=5, ignore_eos=True), neighbour.append)
    engine.step(); engine.step()
    engine.abort(leaving)
    while engine.step():
        pass
    assert neighbour[-1] is None
    assert_empty(engine)
    del leaving, engine
    gc.collect()
print("survived")
"""


def test_a_decoder_that_swallows_everything_hangs_nothing() -> None:
    """Neither when it is cancelled nor when it is collected; in a process of its own, as it could hang that."""
    done = subprocess.run([sys.executable, "-c", _STUBBORN], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip().endswith("survived"), done.stderr
