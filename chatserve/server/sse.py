"""Server-sent events: the one module that knows sse-starlette.

The official OpenAI clients understand a subset of the format only: ``data: <json>`` events, comments and
``data: [DONE]``; never ids, named events, retry or empty data. JSON inside an event has no line separators.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import AppStatus, EventSourceResponse
from starlette.types import Message, Receive, Scope, Send

DONE = b"data: [DONE]\n\n"

# Draining is the engine's work: it ends each stream with an error event. Without this line sse-starlette would cut
# every stream half a second after the signal.
AppStatus.enable_automatic_graceful_drain = False

_encoder = msgspec.json.Encoder()
_SEPARATORS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def encode_text(text: str) -> bytes:
    """`text` as a JSON string without raw U+2028, U+2029 or U+0085: some clients split lines there."""
    return without_separators(_encoder.encode(text))


def without_separators(json_body: bytes) -> bytes:
    """The same JSON with U+2028, U+2029 and U+0085 escaped."""
    if json_body.isascii():
        return json_body
    for raw, escaped in _SEPARATORS:
        json_body = json_body.replace(raw, escaped)
    return json_body


def frame(json_body: bytes) -> bytes:
    """One ``data:`` event; `json_body` is a single line."""
    return b"data: " + json_body + b"\n\n"


class EventStream(EventSourceResponse):
    """A streaming answer of ready-made event frames.

    Args:
        frames: whole events; the iterator is closed when the client goes.
        on_close: called exactly once when the response ends, however it ends, even before its first frame.
        keepalive: frame to send every `interval` seconds, None for none. It needs no idle timer for each event: between
            two of them no silence exceeds the interval.
    """

    def __init__(
        self,
        frames: AsyncIterator[bytes],
        *,
        on_close: Callable[[], None],
        keepalive: ServerSentEvent | None,
        interval: float,
    ) -> None:
        self._on_close = on_close
        super().__init__(
            frames,
            headers={"Cache-Control": "no-cache"},
            sep="\n",
            ping=interval if keepalive else 0,
            ping_message_factory=(lambda: keepalive) if keepalive else None,
        )

    async def _send_with_timeout(self, send: Send, message: Message) -> None:
        """No send has a time limit here, so none gets a cancel scope: it would cost a third of an event's time."""
        await send(message)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()


def comment(text: str) -> ServerSentEvent:
    """A keep-alive that every client ignores."""
    return ServerSentEvent(comment=text, sep="\n")


def data(json_body: str) -> ServerSentEvent:
    """A keep-alive that carries a chunk, for clients and proxies that count only data."""
    return ServerSentEvent(data=json_body, sep="\n")
