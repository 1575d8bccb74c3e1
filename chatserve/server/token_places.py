"""`TokenPlaces`: which tokens of an answer belong to which part of its text."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable

from chatserve.engine.generation import PublishedToken


class TokenPlaces:
    """Tokens in the order of the answer, handed out to the parts of its text that are shown.

    A token may come before its text (part of a character, what waits for a stop), behind it, or have none at all (the
    end token): those go with the text that follows, at last with `rest`. Tokens of other text, of calls, are dropped.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting: deque[tuple[int, int, PublishedToken]] = deque()  # with the place of its text, in characters
        self._num_characters = 0
        self._end = 0  # of the text that was shown last

    def add(self, tokens: Iterable[PublishedToken]) -> None:
        """The next tokens of the answer."""
        for token in tokens:
            start = self._num_characters
            self._num_characters += len(self._decoder.decode(token.bytes))
            self._waiting.append((start, self._num_characters, token))

    def take(self, start: int, stop: int) -> list[PublishedToken]:
        """The tokens of a text that is shown now, by its place in the answer; texts come in order."""
        is_gap, self._end = start > self._end, stop
        taken = []
        while self._waiting and self._waiting[0][0] < stop:
            token_start, token_stop, token = self._waiting.popleft()
            if not is_gap or token_stop > start or token_start == start:
                taken.append(token)
        return taken

    def rest(self) -> list[PublishedToken]:
        """At the end of an answer that ends with text: its tokens that are left."""
        return [token for start, _, token in self._waiting if start < self._end or not token.bytes]
