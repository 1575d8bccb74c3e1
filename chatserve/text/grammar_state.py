"""`GrammarState`: which tokens a grammar allows behind the tokens of any hypothesis of one request."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

_log = logging.getLogger("chatserve.text")

Mask: TypeAlias = NDArray[np.bool_]

_MAX_CURSORS = 16  # matchers of one request; a search with more hypotheses moves them back and forth
_NEAR = 32  # moving a matcher over so many tokens costs less than copying it


@dataclass(frozen=True, slots=True)
class Allowed:
    """What may follow.

    Attributes:
        tokens: bool[vocabulary size]; the end tokens among them when the answer may end here.
        may_end: the grammar accepts the text as it stands.
        must_end: nothing but an end may follow.
    """

    tokens: Mask
    may_end: bool
    must_end: bool


class _Cursor:
    """A matcher and the tokens it has consumed."""

    __slots__ = ("matcher", "tokens")

    def __init__(self, matcher: LLMatcher, tokens: list[int]) -> None:
        self.matcher = matcher
        self.tokens = tokens

    def distance(self, tokens: list[int]) -> int:
        """Tokens to take back and to consume on the way to `tokens`."""
        common = _common_length(self.tokens, tokens)
        return len(self.tokens) + len(tokens) - 2 * common

    def move(self, tokens: list[int]) -> bool:
        """Go to `tokens`; False when the grammar does not allow them (the cursor stands where it stopped)."""
        common = _common_length(self.tokens, tokens)
        if common < len(self.tokens):
            self.matcher.rollback(len(self.tokens) - common)
            # llguidance 1.9.1 keeps its last mask over a rollback, and gives it out again after as many other tokens.
            self.matcher.compute_bitmask()
        # Unlike `consume_tokens` this stops before a token that is not allowed, and the matcher stays sound.
        consumed = self.matcher.try_consume_tokens(tokens[common:])
        self.tokens = tokens[: common + consumed]
        return len(self.tokens) == len(tokens)


class GrammarState:
    """Follows all hypotheses of a request; nothing has to be told about forks, truncations or drafts.

    The state of a hypothesis is a function of its tokens. It is kept in cursors, each of them at the tokens it was
    asked about last; a question is answered by the nearest one, which moves there, or by a copy when that is far. So a
    chain costs one step a token, a search tree keeps one cursor for each branch, and rejected drafts cost nothing.

    Safe to use from several threads, one at a time.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._start = matcher
        self._vocab_size = vocab_size
        self._cursors = [_Cursor(matcher.deep_copy(), [])]
        self._lock = threading.Lock()

    def allowed(self, generated: list[int]) -> Allowed | None:
        """What may follow these tokens of the answer; None when they are not themselves allowed."""
        with self._lock:
            cursor = self._cursor_at(generated)
            return None if cursor is None else self._read(cursor.matcher)

    def accepts(self, generated: list[int]) -> bool:
        """Whether these tokens, without an end token, are a complete answer."""
        with self._lock:
            cursor = self._cursor_at(generated)
            return cursor is not None and cursor.matcher.is_accepting()

    def _cursor_at(self, tokens: list[int]) -> _Cursor | None:
        best = min(self._cursors, key=lambda cursor: cursor.distance(tokens))
        if best.distance(tokens) > _NEAR and len(self._cursors) < _MAX_CURSORS:
            best = _Cursor(best.matcher.deep_copy(), best.tokens)
            self._cursors.append(best)
        return best if best.move(tokens) else None

    def _read(self, matcher: LLMatcher) -> Allowed:
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        tokens = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        if matcher.is_error():  # a limit was hit: then it would allow the end, whatever is lacking
            _log.warning("a grammar cannot be followed any further: %s", matcher.get_error()[:200])
            self._cursors = [_Cursor(self._start.deep_copy(), [])]
            return Allowed(np.zeros_like(tokens), may_end=False, must_end=False)
        return Allowed(tokens, matcher.is_accepting(), matcher.is_stopped())


def _common_length(first: list[int], second: list[int]) -> int:
    """Length of the common prefix. Most often one of the two begins with the other, which takes one comparison."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle)
    return low
