"""Decoders that misbehave, in company: neighbours who must finish as if they were alone."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from chatserve.decoding import Context, Sequence
from chatserve.errors import ChatserveError
from tests.decoding.harness import Body, assert_empty, make_engine, request

NEIGHBOURS = [request("sampling", max_tokens=9, seed=8), request("parallel", range(30), n=2, max_tokens=7, seed=9)]


def fate(body: Body, limits: dict[str, Any] | None = None, **fields: Any) -> ChatserveError:
    """Run the decoder among neighbours, who must finish as if they were alone; the error that it ended with."""
    engine = make_engine(body, **(limits or {}))
    neighbours: list[list[Any]] = [[] for _ in NEIGHBOURS]
    for neighbour, news in zip(NEIGHBOURS, neighbours, strict=True):
        engine.submit(neighbour, news.append)
    engine.step()
    heard: list[Any] = []
    try:
        engine.submit(request(body.__name__, **{"max_tokens": 4, **fields}), heard.append)
    except ChatserveError as refusal:
        heard.append(refusal)
        engine.check_integrity()
    while engine.step():
        pass
    assert_empty(engine)
    for index, news in enumerate(neighbours):
        assert news == solo(index)
    *_, error = heard
    assert isinstance(error, ChatserveError)
    assert sum(isinstance(one, ChatserveError) for one in heard) == 1
    return error


@functools.cache
def solo(index: int) -> list[Any]:
    """What a neighbour hears that is alone."""
    neighbour = NEIGHBOURS[index]
    engine = make_engine()
    heard: list[Any] = []
    engine.submit(neighbour, heard.append)
    while engine.step():
        pass
    return heard


Misuse: TypeAlias = Callable[[Any, Any], Any]


async def leaves(ctx: Context, prompt: Sequence, params: Any) -> None:
    raise SystemExit(3)


async def is_cancelled(ctx: Context, prompt: Sequence, params: Any) -> None:
    raise asyncio.CancelledError


class Panic(BaseException):
    """What no `except Exception` catches."""


async def panics_in_company(ctx: Context, prompt: Sequence, params: Any) -> None:
    raise BaseExceptionGroup("several", [SystemExit(1), Panic()])


ROWS: dict[str, Callable[[Context, list[Sequence]], Awaitable[Any]]] = {
    "sample": lambda ctx, seqs: ctx.sample(seqs),
    "verify": lambda ctx, seqs: ctx.verify(seqs, [[65]] * len(seqs)),
    "topk": lambda ctx, seqs: ctx.topk(seqs, 2),
    "logits": lambda ctx, seqs: ctx.logits(seqs, stage="warped"),
    "score": lambda ctx, seqs: ctx.score(seqs, [[65, 66]] * len(seqs)),
    "gather": lambda ctx, seqs: ctx.gather(ctx.sample(seqs), ctx.topk(seqs, 1)),
}
