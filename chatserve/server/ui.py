"""Routes that only the browser UI uses; docs/ui-protocol.md is their contract."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatserve.config import Config
from chatserve.engine.async_engine import AsyncEngine
from chatserve.errors import NotFoundError, RequestError
from chatserve.server import sse
from chatserve.server.bodies import ChatBody
from chatserve.server.chat import ChatWish
from chatserve.server.off_loop import off_loop_when_long
from chatserve.server.prefixes import num_bytes_of_chat
from chatserve.server.responses import response_id
from chatserve.server.ui_answer import UiAnswer
from chatserve.server.ui_engine import EngineFeed
from chatserve.server.validation import parse, read_body

KEPT_SECONDS = 20.0

_log = logging.getLogger("chatserve.server")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_ANSWER_ID = re.compile(r"[0-9A-Za-z_-]{32,64}")  # who knows it may read and stop the answer: too long to be guessed


@dataclass(slots=True, eq=False)
class _Kept:
    """An answer, how many responses read it, and the timer that ends it when none has for a while."""

    id: str
    answer: UiAnswer
    num_readers: int = 0
    expiry: asyncio.TimerHandle | None = None


class UiRoutes:
    """The UI's own streams over one engine."""

    def __init__(self, engine: AsyncEngine, config: Config) -> None:
        self._engine = engine
        self._config = config
        self._kept: dict[str, _Kept] = {}
        self._arriving: dict[str, asyncio.Event] = {}  # set once it is clear what became of the request
        self._feed = EngineFeed(engine)

    def routes(self) -> list[Route]:
        return [
            Route("/ui/stream/{id}", self.create, methods=["PUT"]),
            Route("/ui/stream/{id}", self.attach, methods=["GET"]),
            Route("/ui/stream/{id}", self.stop, methods=["DELETE"]),
            Route("/ui/engine", self.watch, methods=["GET"]),
        ]

    async def create(self, request: Request) -> Response:
        """Everything that can be refused is refused here, before the first byte."""
        answer_id = self._new_id(request)
        arrival = self._arriving[answer_id] = asyncio.Event()
        try:
            raw = await read_body(request, self._config)
            wish = await off_loop_when_long(num_bytes_of_chat(self._engine, raw), lambda: self._wish(raw))
            answers = await wish.submit(self._engine)
            kept = self._kept[answer_id] = _Kept(answer_id, UiAnswer(self._engine, answers))
        finally:
            del self._arriving[answer_id]
            arrival.set()
        return self._read(kept, after=0)

    def _wish(self, raw: bytes) -> ChatWish:
        return ChatWish.of(self._engine, parse(raw, ChatBody), response_id("ui"))

    async def attach(self, request: Request) -> Response:
        """Go on behind the event that the client names. Raises NotFoundError when that is not kept."""
        kept = await self._find(request)
        after = _last_event_id(request)
        if not kept.answer.log.has_all_after(after):
            raise NotFoundError(f"What follows event {after} is not kept any more.", code="events_not_kept")
        return self._read(kept, after)

    async def stop(self, request: Request) -> Response:
        """End the request now."""
        kept = await self._find(request)
        self._forget(kept)
        return Response(status_code=204)

    async def watch(self, request: Request) -> Response:
        """The state of the engine, without end."""
        return self._stream(self._feed.events(), lambda: None)

    def _new_id(self, request: Request) -> str:
        """The id that the client has chosen for a new answer."""
        answer_id: str = request.path_params["id"]
        if not _ANSWER_ID.fullmatch(answer_id):
            allowed = "must be 32 to 64 letters, digits, hyphens or underscores"
            raise RequestError(f"The answer's id {answer_id[:80]!r} {allowed}.", param="id", code="invalid_value")
        if answer_id in self._kept or answer_id in self._arriving:
            raise HTTPException(409, f"There is an answer {answer_id!r} already.")
        return answer_id

    async def _find(self, request: Request) -> _Kept:
        """The answer of this id. A client that comes back early waits until its request has been taken."""
        answer_id = request.path_params["id"]
        if answer_id in self._arriving:
            await self._arriving[answer_id].wait()
        if answer_id not in self._kept:
            raise NotFoundError(f"The answer {answer_id[:80]!r} is not kept any more.", code="answer_not_kept")
        return self._kept[answer_id]

    def _read(self, kept: _Kept, after: int) -> Response:
        kept.num_readers += 1
        if kept.expiry is not None:
            kept.expiry.cancel()
        return self._stream(kept.answer.log.read(after), lambda: self._left(kept))

    def _left(self, kept: _Kept) -> None:
        """A response has ended: keep the answer for a while."""
        kept.num_readers -= 1
        if not kept.num_readers:
            kept.expiry = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._expire, kept)

    def _expire(self, kept: _Kept) -> None:
        if not kept.answer.log.is_complete:
            _log.info("request %s: ended, nobody came back for it", kept.answer.request_id)
        self._forget(kept)

    def _forget(self, kept: _Kept) -> None:
        if self._kept.get(kept.id) is kept:
            del self._kept[kept.id]
        if kept.expiry is not None:
            kept.expiry.cancel()
        kept.answer.stop()

    def _stream(self, frames: AsyncIterator[bytes], on_close: Callable[[], None]) -> Response:
        keepalive = sse.comment("keep-alive")
        return sse.EventStream(frames, on_close=on_close, keepalive=keepalive, interval=self._config.keepalive_interval)


def _last_event_id(request: Request) -> int:
    """The event that the client has seen last: the header that browsers send, or ``?after=``."""
    given = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
    if not _INTEGER.fullmatch(given):
        raise RequestError(f"The last event id is {given[:80]!r}; it must be an integer.", code="invalid_value")
    return max(0, int(given))
