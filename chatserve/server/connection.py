"""`Connection`: uvicorn's HTTP protocol with bounds on the patience with clients, and refusals in our shape."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from chatserve.config import Config
from chatserve.server.errors import Failure

_log = logging.getLogger("chatserve.server")


class Connection(HttpToolsProtocol):
    """One client's connection.

    What is sent but not read waits in a bounded buffer, and then in the engine's answer, whose length is bounded too. A
    client that does not take any of it for `stall_timeout` seconds is cut off: its request ends as if it had left.

    Attributes:
        head_timeout: seconds that the line and the headers of a request may take.
        stall_timeout: seconds that the buffer may stay full.
    """

    head_timeout: float
    stall_timeout: float

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        _cancel(self._head_timer)
        super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self.stall_timeout, self._cut_off)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._stall_timer)

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._head_timer)
        _cancel(self._stall_timer)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What uvicorn would answer to malformed HTTP in plain text."""
        body = Failure(400, "invalid_request_error", msg, code="malformed_http").body()
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def _expect_head(self) -> None:
        _cancel(self._head_timer)
        self._head_timer = self.loop.call_later(self.head_timeout, self.transport.close)

    def _cut_off(self) -> None:
        _log.warning("%s has not read anything for %g s: cut off", self.client, self.stall_timeout)
        self.transport.abort()


def connection_class(config: Config) -> type[Connection]:
    """`Connection` with the bounds of a configuration: uvicorn makes the instances itself."""
    bounds = {"head_timeout": config.body_timeout, "stall_timeout": config.stall_timeout}
    return type("BoundedConnection", (Connection,), bounds)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
