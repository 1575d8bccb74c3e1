"""Whole answers: gather every delta, and stop at once when the client goes away meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request

from chatserve.engine.generation import PublishedToken
from chatserve.server.answers import Answers

Result = TypeVar("Result")


@dataclass(slots=True)
class Choice:
    """One finished choice."""

    finish_reason: str | None = None
    pieces: list[str] = field(default_factory=list)
    tokens: list[PublishedToken] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class Collected:
    """Everything an answer brought: its choices in order and what its decoder traced."""

    choices: list[Choice]
    trace: list[dict[str, Any]] = field(default_factory=list)


async def collect(answers: Answers) -> Collected:
    """Gather the whole answer. Raises GenerationError when it breaks."""
    whole = Collected([Choice() for _ in range(answers.num_choices)])
    async for delta in answers:
        choice = whole.choices[delta.choice]
        choice.pieces.append(delta.text)
        choice.tokens.extend(delta.tokens)
        choice.finish_reason = delta.finish_reason or choice.finish_reason
        whole.trace.extend(delta.trace)
    return whole


async def collect_unless_gone(answers: Answers, request: Request) -> Collected | None:
    """As `collect`, but None when the client closes the connection first; the answers are cancelled in any case."""
    return await unless_gone(answers, request, collect(answers))


async def unless_gone(answers: Answers, request: Request, work: Coroutine[Any, Any, Result]) -> Result | None:
    """What `work` makes of the answers, None when the client closes the connection first; they are cancelled then."""
    collecting = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait((collecting, leaving), return_when=asyncio.FIRST_COMPLETED)
        return collecting.result() if collecting.done() else None
    finally:
        answers.cancel()
        collecting.cancel()
        leaving.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
