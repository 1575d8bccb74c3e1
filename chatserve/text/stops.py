"""Stop strings: the rule for the earliest one, holding text back for it, and finding it among tokens.

The rule: the match with the smallest END counts; among those with the same end, the one with the smallest start. A
match is thus decided by the character that completes it, and the answer does not depend on how the text was cut into
tokens or pushes. Empty stop strings never match.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from functools import lru_cache

from chatserve.text.vocabulary import Vocabulary


def find_stop(text: str, stops: Sequence[str], after: int = 0) -> tuple[int, int] | None:
    """The earliest stop in `text` as ``(start, end)``; only matches that end behind position `after` count."""
    best: tuple[int, int] | None = None
    for stop in stops:
        start = text.find(stop, max(0, after - len(stop) + 1)) if stop else -1
        if start >= 0 and (best is None or (start + len(stop), start) < (best[1], best[0])):
            best = start, start + len(stop)
    return best


class StopHolder:
    """Holds back the end of a text that may still become a stop string.

    Text is released as soon as no stop can begin in it. Once a stop is complete, it and all behind it is dropped.

    Attributes:
        held: the text held back now, always the beginning of a stop.
        stopped: whether a stop was met.
    """

    __slots__ = ("_beginnings", "_first_characters", "_stops", "held", "stopped")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._first_characters = frozenset(stop[0] for stop in self._stops)
        self._beginnings = tuple(_Beginning(stop) for stop in self._stops)
        self.held = ""
        self.stopped = False

    def push(self, text: str, *, armed: bool = True) -> str:
        """Add text, get what is released. Stops that this text completes are ignored unless `armed`."""
        if self.stopped:
            return ""
        if not self.held and self._first_characters.isdisjoint(text):
            return text
        pending = self.held + text
        match = find_stop(pending, self._stops, len(self.held)) if armed else None
        if match:
            self.stopped, self.held = True, ""
            return pending[: match[0]]
        num_released = len(pending) - max([beginning.advance(text) for beginning in self._beginnings])
        self.held = pending[num_released:]
        return pending[:num_released]

    def flush(self) -> str:
        """Release what is held: the text has ended before any stop was complete."""
        held, self.held = self.held, ""
        return held


class _Beginning:
    """How much of a stop's beginning, short of the whole stop, a growing text ends with (Knuth-Morris-Pratt).

    Linear in the text whatever the stop: a long one of equal characters must not slow a server down.
    """

    __slots__ = ("_fallbacks", "_num_matched", "_stop")

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._fallbacks = _fallbacks(stop)
        self._num_matched = 0

    def advance(self, text: str) -> int:
        """The number of characters matched at the end of `text`."""
        stop, num_matched = self._stop, self._num_matched
        for character in text:
            while num_matched and stop[num_matched] != character:
                num_matched = self._fallbacks[num_matched - 1]
            num_matched += stop[num_matched] == character
            if num_matched == len(stop):
                num_matched = self._fallbacks[-1]
        self._num_matched = num_matched
        return num_matched


@lru_cache(maxsize=1024)  # all choices of a request have the same stops
def _fallbacks(stop: str) -> tuple[int, ...]:
    """For each beginning of `stop`, the length of its longest shorter end that begins `stop` too."""
    fallbacks = [0]
    for character in stop[1:]:
        length = fallbacks[-1]
        while length and stop[length] != character:
            length = fallbacks[length - 1]
        fallbacks.append(length + (stop[length] == character))
    return tuple(fallbacks)


class StopMatcher:
    """Whether a hypothesis has met a stop string. Stateless: forks and truncations need nothing copied or undone.

    It looks at the bytes of the last tokens only, far enough back for the longest stop, and asks `find_stop` about the
    decoded text when they hold a stop. UTF-8 is self-synchronising, so the bytes of a stop occur exactly where its
    characters do; the one exception, U+FFFD, which invalid bytes decode to, always takes the decoded text.
    """

    def __init__(self, stops: Sequence[str], vocabulary: Vocabulary) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._table = vocabulary.byte_table
        # Lone surrogates can be asked for, but never occur in decoded text.
        self._stop_bytes = [stop.encode("utf-8", "surrogatepass") for stop in self._stops]
        self._last_bytes = bytes({stop[-1] for stop in self._stop_bytes})
        self._has_replacement = any("\ufffd" in stop for stop in self._stops)
        # A match ends behind the old bytes or with them, and U+FFFD stands for at most its own 3 bytes. Another 3 bytes
        # in front absorb what is decoded wrongly because the tail begins inside a character.
        self._reach = max(map(len, self._stop_bytes), default=0) + 3

    def matches(self, token_ids: Sequence[int], num_new: int = 1, *, start: int = 0) -> bool:
        """Whether the last `num_new` tokens completed a stop in the text of ``token_ids[start:]``.

        The text is what is settled: bytes of a character that is still incomplete are not yet U+FFFD. So a `StopHolder`
        fed with the same text stops with the very token for which this is first true.

        Args:
            token_ids: tokens below the vocabulary's size.
            num_new: how many of them, at the end, to ask about; at most ``len(token_ids) - start``.
            start: where the text begins: the length of the prompt, when the tokens include it.
        """
        if not num_new or not self._stops:
            return False
        pieces = self._table.pieces
        if num_new == 1:
            new = pieces[token_ids[-1]]
        else:
            new = b"".join([pieces[i] for i in token_ids[len(token_ids) - num_new :]])
        can_end = self._has_replacement or len(new.translate(None, self._last_bytes)) < len(new)
        return can_end and self._completes(token_ids, start, len(token_ids) - num_new, new)

    def _completes(self, token_ids: Sequence[int], start: int, end: int, new: bytes) -> bool:
        """`matches` on the tail of the text; `new` are the bytes of the tokens from `end` on."""
        first, num_missing = end, self._reach
        while first > start and num_missing > 0:
            first -= 1
            num_missing -= len(self._table.pieces[token_ids[first]])
        if first > start:
            old = b"".join([self._table.pieces[i] for i in token_ids[first:end]])
        else:
            old = self._table.join(token_ids[start:end])
            new = self._table.join(token_ids[start:])[len(old) :]
        tail = old + new
        if not self._has_replacement and not any(stop in tail for stop in self._stop_bytes):
            return False
        return find_stop(_settled(tail), self._stops, len(_settled(old))) is not None


def _settled(data: bytes) -> str:
    """The text of `data` that no further byte can change."""
    return utf_8_decode(data, "replace", False)[0]
