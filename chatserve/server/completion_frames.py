"""Event frames of ``/v1/completions``: text chunks with echo and cumulative log-probabilities; no role chunk."""

from __future__ import annotations

from typing import Any

from chatserve.engine.generation import Delta, Usage
from chatserve.server.echo import Echo
from chatserve.server.frames import ChunkHead, encode
from chatserve.server.logprobs import LegacyLogprobs, joined
from chatserve.server.sse import encode_text, frame


class CompletionFrames:
    """Frames of one streaming legacy completion.

    Args:
        echo: the prompt to send before each choice's text; None for none. Its log-probabilities are known only once the
            prompt has been computed, so it goes out with the choice's first delta.
        logprobs: one builder for each choice; empty when no log-probabilities are wanted.
    """

    def __init__(self, head: ChunkHead, *, echo: Echo | None, logprobs: list[LegacyLogprobs]) -> None:
        self._head = head
        self._echo = echo
        self._logprobs = logprobs
        self._echoed: set[int] = set()

    def opening(self, num_choices: int, usage: Usage | None) -> bytes:
        return b""

    def delta(self, delta: Delta, usage: Usage | None) -> bytes:
        text, logprobs = delta.text, self._lists(delta)
        if self._echo is not None and delta.choice not in self._echoed:
            self._echoed.add(delta.choice)
            text = self._echo.text(delta.choice) + text
        if not (text or logprobs or delta.finish_reason or delta.trace):
            return b""
        finish = b"null" if delta.finish_reason is None else encode_text(delta.finish_reason)
        lists = b"null" if logprobs is None else encode(logprobs)
        choice = _choice(delta.choice, encode_text(text), lists, finish)
        return frame(self._head.chunk(choice, usage, delta.trace))

    def _lists(self, delta: Delta) -> dict[str, list[Any]] | None:
        if not self._logprobs:
            return None
        builder = self._logprobs[delta.choice]
        if self._echo is not None and delta.choice not in self._echoed:
            return joined(self._echo.logprobs(delta.choice, builder), builder.answer(delta.tokens))
        return builder.answer(delta.tokens) if delta.tokens else None

    def usage(self, usage: Usage) -> bytes:
        return frame(self._head.chunk(b"", usage))

    def empty(self) -> bytes:
        return self._head.chunk(_choice(0, b'""', b"null", b"null"))


def _choice(index: int, text: bytes, logprobs: bytes, finish_reason: bytes) -> bytes:
    return b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}' % (index, text, logprobs, finish_reason)
