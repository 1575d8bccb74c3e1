"""Event frames of one streaming answer: what all chunks share is encoded once, each event encodes its text only."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from chatserve.engine.generation import Delta, Usage
from chatserve.server.logprobs import chat_logprobs
from chatserve.server.sse import encode_text, frame, without_separators
from chatserve.server.usage import usage_body
from chatserve.text.vocabulary import Vocabulary

UsageMode = Literal["none", "final", "continuous"]

_encoder = msgspec.json.Encoder()


def encode(value: Any) -> bytes:
    """Any JSON value, fit for a ``data:`` line."""
    return without_separators(_encoder.encode(value))


class Frames(Protocol):
    """What `chatserve.server.streaming` needs to make events; `usage` is given in mode "continuous" only."""

    def opening(self, num_choices: int, usage: Usage | None) -> bytes:
        """What goes out on acceptance, before any token."""

    def delta(self, delta: Delta, usage: Usage | None) -> bytes:
        """The events of one delta; b"" when it brings nothing to show."""

    def usage(self, usage: Usage) -> bytes:
        """The last chunk of a stream that was asked for usage."""

    def empty(self) -> bytes:
        """The JSON of a chunk without news, for keep-alives."""


class ChunkHead:
    """The constant bytes around a chunk's choices: ``{"id": ..., "choices": [`` and ``], "usage": null}``."""

    def __init__(self, response_id: str, kind: str, created: int, model: str, usage_mode: UsageMode) -> None:
        constant = encode({"id": response_id, "object": kind, "created": created, "model": model})
        self.usage_mode = usage_mode
        self._head = constant[:-1] + b',"choices":['
        self._tail = b"]}" if usage_mode == "none" else b'],"usage":null}'

    def chunk(self, choice: bytes, usage: Usage | None = None, trace: tuple[dict[str, Any], ...] = ()) -> bytes:
        """The JSON of one chunk around the JSON of its choice."""
        tail = self._tail
        if usage is not None:
            tail = b'],"usage":' + _encoder.encode(usage_body(usage)) + b"}"
        if trace:
            tail = tail[:-1] + b',"trace":' + encode(trace) + b"}"
        return self._head + choice + tail


class ChatFrames:
    """Frames of ``/v1/chat/completions``: for each choice a role chunk, content chunks, and a finish chunk."""

    def __init__(self, head: ChunkHead, vocabulary: Vocabulary, *, has_logprobs: bool) -> None:
        self._head = head
        self._vocabulary = vocabulary
        self._has_logprobs = has_logprobs

    def opening(self, num_choices: int, usage: Usage | None) -> bytes:
        role = b'{"role":"assistant","content":""}'
        return b"".join(frame(self._head.chunk(chat_choice(index, role), usage)) for index in range(num_choices))

    def delta(self, delta: Delta, usage: Usage | None) -> bytes:
        events = b""
        logprobs = self._logprobs(delta)
        if delta.text or logprobs is not None or delta.trace:
            content = b'{"content":' + encode_text(delta.text) + b"}"
            choice = chat_choice(delta.choice, content, logprobs or b"null")
            events = frame(self._head.chunk(choice, usage, delta.trace))
        if delta.finish_reason is not None:
            events += self._finish(delta.choice, delta.finish_reason, usage)
        return events

    def _finish(self, index: int, reason: str, usage: Usage | None) -> bytes:
        return frame(self._head.chunk(chat_choice(index, b"{}", finish_reason=encode_text(reason)), usage))

    def _logprobs(self, delta: Delta) -> bytes | None:
        if not self._has_logprobs or not delta.tokens:
            return None
        return encode(chat_logprobs(delta.tokens, self._vocabulary))

    def usage(self, usage: Usage) -> bytes:
        return frame(self._head.chunk(b"", usage))

    def empty(self) -> bytes:
        return self._head.chunk(chat_choice(0, b"{}"))


def chat_choice(index: int, delta: bytes, logprobs: bytes = b"null", finish_reason: bytes = b"null") -> bytes:
    """The JSON of one choice around the JSON of its parts."""
    return b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}' % (index, delta, logprobs, finish_reason)
