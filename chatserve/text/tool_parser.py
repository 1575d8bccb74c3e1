"""`ToolCallParser`: splits the text of an answer into content and tool calls while it is being written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from chatserve.text.json_call import JsonCall


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader; `start` is its place in the answer, in characters."""

    text: str
    start: int = 0


@dataclass(frozen=True, slots=True)
class CallBegin:
    """The index-th call begins; its function is known."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the text of a call's arguments."""

    index: int
    text: str


Piece: TypeAlias = Content | CallBegin | CallArguments


class CallReader(Protocol):
    """Reads what stands behind an opening: one call, or several one after the other (see `JsonCall`, `MistralCall`)."""

    @property
    def state(self) -> str:
        """ "complete" at the end, "broken" at the first character that can't belong to a call, "next" between two."""

    @property
    def name(self) -> str | None:
        """The name of the call's function, once it is known."""

    def push(self, character: str) -> None:
        """One more character."""

    def take_arguments(self) -> str:
        """New text of the call's arguments."""


class ToolCallParser:
    """Finds calls of the form ``<opening>call<closing>`` in a text that comes in pieces.

    White space around calls is dropped, other text is content, and so is what looks like a call at first and turns out
    not to be one. Text that may become an opening is held back.

    Behind an opening a call of a function that was not offered is a call too, as in other servers: the client can tell
    the model so, and a reader could do nothing with its text. Without openings a reader that knows the functions tells
    calls from other JSON objects.

    Args:
        opening: what stands before each call; "" where the whole answer is one call or none.
        closing: what stands behind it.
        reader: reads the call itself, by default ``{"name": ..., "arguments": ...}``.
        max_calls: further calls are dropped, with whatever follows.

    Attributes:
        num_calls: calls that have begun.
    """

    def __init__(
        self,
        opening: str,
        closing: str,
        *,
        reader: Callable[[], CallReader] = JsonCall,
        max_calls: int | None = None,
    ) -> None:
        self._opening = opening
        self._closing = closing
        self._reader = reader
        self._max_calls = max_calls
        self._call = None if opening else reader()
        self._raw = ""  # the text of a call until its name is known: it may have to become content again
        self._held = ""  # text outside of calls that may become an opening, or a closing behind a call
        self._space = ""  # white space before any content
        self._has_content = False
        self._is_behind_call = False
        self._pieces: list[Piece] = []
        self._num_pushed = 0
        self.num_calls = 0

    def push(self, text: str) -> list[Piece]:
        """More of the answer; returns what is certain by now."""
        self._num_pushed += len(text)
        while text:
            text = self._push_text(text) if self._call is None else self._push_call(self._call, text)
        return self._taken()

    def finish(self) -> list[Piece]:
        """The answer has ended: what was held back is content, unless it belongs to a call."""
        if not self._is_behind_call:
            self._add_content(rest := self._raw + self._held, self._num_pushed - len(rest))
        if self._space and not self.num_calls:
            self._pieces.append(Content(self._space, self._num_pushed - len(self._space)))
        return self._taken()

    def _push_text(self, text: str) -> str:
        """Take text outside of calls; what follows an opening is returned."""
        if self._is_full():
            return ""
        self._held += text
        if self._is_behind_call and not self._skip_closing():
            return ""
        held_at = self._num_pushed - len(self._held)
        start = self._held.find(self._opening) if self._opening else -1
        if start >= 0:
            before, rest = self._held[:start], self._held[start + len(self._opening) :]
            self._add_content(before, held_at)
            self._call, self._raw, self._held = self._reader(), self._opening, ""
            return rest
        certain = len(self._held) - _overlap(self._held, self._opening)
        self._add_content(self._held[:certain], held_at)
        self._held = self._held[certain:]
        return ""

    def _skip_closing(self) -> bool:
        """Drop the closing behind a call and white space before it; False while it may still come."""
        if self._closing:
            self._held = self._held.lstrip()
            if not self._held.startswith(self._closing) and self._closing.startswith(self._held):
                return False
            self._held = self._held.removeprefix(self._closing)
        self._is_behind_call = False
        return True

    def _push_call(self, call: CallReader, text: str) -> str:
        """Take text of a call; what follows it is returned."""
        for position, character in enumerate(text, 1):
            was_named = call.name is not None
            call.push(character)
            if call.name is None:
                self._raw += character
            elif not was_named:
                self._pieces.append(CallBegin(self.num_calls, call.name))
                self.num_calls += 1
                self._raw = self._space = ""
            if call.state in ("next", "complete", "broken"):
                self._pass_on(call)
            if call.state == "next" and self._is_full():
                self._call = None
                return ""
            if call.state == "complete" or (call.state == "broken" and call.name is None):
                return self._end_call(call, text[position:])
            if call.state == "broken":
                return self._end_call(call, text[position - 1 :])
        self._pass_on(call)
        return ""

    def _is_full(self) -> bool:
        return self._max_calls is not None and self.num_calls >= self._max_calls

    def _end_call(self, call: CallReader, rest: str) -> str:
        """Go back to text before `rest`; what turned out to be none of a call is read again, its opening is content."""
        self._call = None
        if call.name is not None:
            self._is_behind_call, self._has_content = True, False
            return rest
        raw, self._raw = self._raw, ""
        opening = self._opening if raw.startswith(self._opening) else ""  # a later call of a list has none
        self._add_content(opening, self._num_pushed - len(rest) - len(raw))
        return raw[len(opening) :] + rest

    def _pass_on(self, call: CallReader) -> None:
        if arguments := call.take_arguments():
            self._pieces.append(CallArguments(self.num_calls - 1, arguments))

    def _add_content(self, text: str, start: int) -> None:
        """Content; white space waits for other text, so that none stands alone around calls."""
        start, text = start - len(self._space), self._space + text
        if self._has_content or text.strip():
            self._space, self._has_content = "", True
            if text:
                self._pieces.append(Content(text, start))
        else:
            self._space = text

    def _taken(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` that `marker` begins with."""
    return next((n for n in range(min(len(text), len(marker) - 1), 0, -1) if marker.startswith(text[-n:])), 0)
