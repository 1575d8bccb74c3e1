"""`Connection`: uvicorn's HTTP protocol with bounds on the patience with clients, and refusals in our shape."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from chatserve.config import Config
from chatserve.server.errors import Failure

_log = logging.getLogger("chatserve.server")

# Bytes of a request's line and headers, as other servers have it.
MAX_HEAD_BYTES = 65_536
_AROUND_HEADER = len(": \r\n")

_TOO_LONG = {
    HTTPStatus.REQUEST_URI_TOO_LONG: "uri_too_long",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "headers_too_large",
}


class Connection(HttpToolsProtocol):
    """One client's connection.

    While it is the client's turn to send something, a timer runs: for the head of a request, for its body, whether
    anybody reads that or not, and for whatever else it has begun to send.

    What is sent but not read waits in a bounded buffer, and then in the engine's answer, whose length is bounded too. A
    client that does not take any of it for `stall_timeout` seconds is cut off: its request ends as if it had left.

    Attributes:
        send_timeout: seconds that the line and the headers of a request may take, and again its body.
        stall_timeout: seconds that the buffer may stay full.
    """

    send_timeout: float
    stall_timeout: float

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._send_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._is_in_head = False
        self._num_head_bytes = 0  # as far as they are parsed
        self._num_received_bytes = 0  # of a head that is not complete: the parser keeps a header until it is
        self._refusal: Failure | None = None  # why the parser was stopped

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_client()

    def data_received(self, data: bytes) -> None:
        was_in_head = self._is_in_head
        super().data_received(data)
        if was_in_head and self._is_in_head and not self.transport.is_closing():
            self._num_received_bytes += len(data)
            if self._num_received_bytes > 2 * MAX_HEAD_BYTES:
                self._refuse(_too_long(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
        if self._send_timer is None and not self._is_answering():
            self._await_client()  # whatever this was, it has ended uvicorn's wait for the next request

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._num_head_bytes, self._num_received_bytes = True, 0, 0
        self._await_client()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url), HTTPStatus.REQUEST_URI_TOO_LONG)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + _AROUND_HEADER, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._await_client()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop_awaiting()
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self.stall_timeout, self._cut_off)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._stall_timer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_awaiting()
        _cancel(self._stall_timer)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls when the parser has stopped; its own answer is plain text."""
        self._refuse(self._refusal or Failure(400, "invalid_request_error", msg, code="malformed_http"))

    def _refuse(self, failure: Failure) -> None:
        if not (self._is_answering() and self.cycle.response_started):
            status, body = HTTPStatus(failure.status), failure.body()
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(head.encode() + body)
        self.transport.close()

    def _count_head(self, num_bytes: int, status: HTTPStatus) -> None:
        """Stop the parser when there is too much; trailers of a chunked body count as well."""
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._refusal = _too_long(status)
            raise ValueError(self._refusal.message)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_client(self) -> None:
        self._stop_awaiting()
        self._send_timer = self.loop.call_later(self.send_timeout, self._end_patience)

    def _stop_awaiting(self) -> None:
        _cancel(self._send_timer)
        self._send_timer = None

    def _end_patience(self) -> None:
        """The client has not sent what it has begun: an answer to it, or to a request before it, is the last one."""
        self._send_timer = None
        if self._is_answering():
            self.cycle.keep_alive = False
        else:
            self.transport.close()

    def _cut_off(self) -> None:
        _log.warning("%s has not read anything for %g s: cut off", self.client, self.stall_timeout)
        self.transport.abort()


def _too_long(status: HTTPStatus) -> Failure:
    what = "The URL is" if status == HTTPStatus.REQUEST_URI_TOO_LONG else "The headers are"
    message = f"{what} too long: the head of a request may have {MAX_HEAD_BYTES} bytes."
    return Failure(status, "invalid_request_error", message, code=_TOO_LONG[status])


def connection_class(config: Config) -> type[Connection]:
    """`Connection` with the bounds of a configuration: uvicorn makes the instances itself."""
    bounds = {"send_timeout": config.body_timeout, "stall_timeout": config.stall_timeout}
    return type("BoundedConnection", (Connection,), bounds)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
