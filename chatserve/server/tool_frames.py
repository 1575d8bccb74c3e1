"""Tool calls in the shapes of the chat API: in a whole message, and as the chunks of a stream."""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from typing import Any

from chatserve.engine.generation import Delta, Usage
from chatserve.server.frames import ChatFrames, ChunkHead, chat_choice, encode
from chatserve.server.sse import frame
from chatserve.text.tool_parser import CallArguments, CallBegin, Content, Piece, ToolCallParser
from chatserve.text.vocabulary import Vocabulary

_ID_CHARACTERS = string.ascii_letters + string.digits


def call_id() -> str:
    """A new id, by which the result of a call will name it: nine letters and digits, since some templates demand it."""
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(9))


def message_with_calls(pieces: Sequence[Piece]) -> dict[str, Any]:
    """The assistant's message of a whole answer."""
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    calls: list[dict[str, Any]] = []
    for piece in pieces:
        if isinstance(piece, CallBegin):
            calls.append({"id": call_id(), "type": "function", "function": {"name": piece.name, "arguments": ""}})
        elif isinstance(piece, CallArguments):
            calls[piece.index]["function"]["arguments"] += piece.text
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if calls:
        message |= {"content": content or None, "tool_calls": calls}
    return message


def finish_reason_with_calls(reason: str, num_calls: int) -> str:
    """An answer that ends with calls waits for their results."""
    return "tool_calls" if reason == "stop" and num_calls else reason


class ToolFrames(ChatFrames):
    """Frames of a stream that may call tools: each call begins with its id and name, then come its arguments."""

    def __init__(
        self, head: ChunkHead, vocabulary: Vocabulary, parsers: Sequence[ToolCallParser], *, has_logprobs: bool
    ) -> None:
        super().__init__(head, vocabulary, has_logprobs=has_logprobs)
        self._parsers = parsers

    def delta(self, delta: Delta, usage: Usage | None) -> bytes:
        parser = self._parsers[delta.choice]
        pieces = parser.push(delta.text)
        if delta.finish_reason is not None:
            pieces += parser.finish()
        bodies = [_delta_body(piece) for piece in pieces]
        logprobs = self._logprobs(delta)
        if not bodies and (logprobs is not None or delta.trace):
            bodies = [{}]  # tokens of a call whose name is not known yet
        events, trace = b"", delta.trace
        for body in bodies:
            choice = chat_choice(delta.choice, encode(body), logprobs or b"null")
            events += frame(self._head.chunk(choice, usage, trace))
            logprobs, trace = None, ()
        if delta.finish_reason is not None:
            events += self._finish(delta.choice, finish_reason_with_calls(delta.finish_reason, parser.num_calls), usage)
        return events


def _delta_body(piece: Piece) -> dict[str, Any]:
    match piece:
        case Content(text):
            return {"content": text}
        case CallBegin(index, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": call_id(), "type": "function", "function": function}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
