"""`Turnstile`: pure ASGI middleware that lets in a few requests at a time."""

from __future__ import annotations

import asyncio
from collections import deque

from starlette.types import ASGIApp, Receive, Scope, Send


class Turnstile:
    """Lets in so many requests in one iteration of the event loop, the others in the next ones, in order.

    The way of a request to the engine is short but without a pause: hundreds that arrive together would stop all
    streams for a tenth of a second.
    """

    def __init__(self, app: ASGIApp, at_once: int = 16) -> None:
        self._app = app
        self._at_once = self._num_free = at_once
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._pass()
        await self._app(scope, receive, send)

    async def _pass(self) -> None:
        loop = asyncio.get_running_loop()
        if self._num_free == self._at_once:
            loop.call_soon(self._begin_iteration)
        if self._num_free:
            self._num_free -= 1
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _begin_iteration(self) -> None:
        self._num_free = self._at_once
        while self._num_free and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # its client may have gone
                turn.set_result(None)
                self._num_free -= 1
        if self._num_free < self._at_once:
            asyncio.get_running_loop().call_soon(self._begin_iteration)
