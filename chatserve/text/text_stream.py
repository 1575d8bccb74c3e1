"""`TextStream`: from the tokens of one published choice to its text and to the bytes each token shows."""

from __future__ import annotations

from codecs import utf_8_decode
from collections import deque
from collections.abc import Iterable, Sequence

from chatserve.text.stops import StopHolder, find_stop
from chatserve.text.vocabulary import Vocabulary

_REPLACEMENT = "\ufffd".encode()


class TextStream:
    """What one choice needs to be published: text as soon as it is safe, and the bytes each token adds to it.

    Text waits while it is the beginning of a character or of a stop string. A token's bytes follow the same rule: they
    are given out, by `take_bytes`, once no stop can cut them, in the order of the tokens. So a token whose bytes begin
    a possible stop waits with its text, while one that ends inside a character goes out at once, with its true bytes.
    In the end all tokens are out and their joined bytes are the text in UTF-8 (invalid bytes stay as they are).

    The result does not depend on how tokens are pushed: it is ``vocabulary.decode(ids)`` cut at the earliest stop.

    Args:
        vocabulary: of the model whose tokens are pushed.
        stops: stop strings; the text ends before the earliest (see `chatserve.text.stops`).
        min_tokens: stops that are completed before this many tokens are ignored.
    """

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str] = (), *, min_tokens: int = 0) -> None:
        self._detokenizer = vocabulary.detokenizer()
        self._holder = StopHolder(stops)
        self._first_characters = {stop[0].encode("utf-8", "surrogatepass") for stop in stops if stop}
        self._has_stops = any(stops)
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._released: list[str] = []
        self._waiting: deque[bytes] = deque()  # pieces of the tokens whose bytes are not out yet
        self._num_waiting = 0  # their joined length
        self._ready: list[bytes] = []

    @property
    def text(self) -> str:
        """All text released so far."""
        if len(self._released) > 1:
            self._released = ["".join(self._released)]
        return self._released[0] if self._released else ""

    @property
    def stopped(self) -> bool:
        """Whether a stop string was met. Tokens pushed after that show nothing."""
        return self._holder.stopped

    def push(self, token_ids: Iterable[int]) -> str:
        """Add tokens, get the text released by them."""
        return "".join([self.push_one(token_id) for token_id in token_ids])

    def push_one(self, token_id: int) -> str:
        """Add a token, get the text released by it."""
        if self._has_stops:
            return self._release(self._push_token(token_id))
        detokenizer = self._detokenizer  # without stops nothing is ever held back or cut
        piece = detokenizer.next_piece(token_id)
        self._ready.append(piece)
        text = detokenizer.feed(piece)
        self._released.append(text)
        return text

    def finish(self) -> str:
        """The rest of the text, at its end: call it once."""
        if self.stopped:
            return ""
        released = self._push_text(self._detokenizer.flush())
        if not self.stopped:
            released += self._holder.flush()
            self._give_out(0)
        return self._release(released)

    def take_bytes(self) -> list[bytes]:
        """The bytes shown by each token that became certain since the last call, in the order of the tokens."""
        ready, self._ready = self._ready, []
        return ready

    def _push_token(self, token_id: int) -> str:
        self._num_tokens += 1
        if self.stopped:
            self._ready.append(b"")
            return ""
        piece = self._detokenizer.next_piece(token_id)
        self._waiting.append(piece)
        self._num_waiting += len(piece)
        return self._push_text(self._detokenizer.feed(piece))

    def _push_text(self, text: str) -> str:
        holder = self._holder
        held = holder.held
        released = holder.push(text, armed=self._num_tokens >= self._min_tokens)
        if holder.stopped:
            self._cut((held + text)[len(released) :])
        elif holder.held or self._detokenizer.partial:
            self._give_out(self._num_uncertain())
        else:
            self._give_out(0)
        return released

    def _num_uncertain(self) -> int:
        """How many of the waiting bytes, at their end, a stop may still cut off; never too few."""
        held, partial = self._holder.held, self._detokenizer.partial
        if held:
            return len(held.encode("utf-8", "surrogatepass")) + len(partial)
        return len(partial) if self._may_begin_stop(partial) else 0

    def _may_begin_stop(self, partial: bytes) -> bool:
        """Whether an incomplete character may become the first of a stop; any may become U+FFFD."""
        return any(first.startswith(partial) or first == _REPLACEMENT for first in self._first_characters)

    def _give_out(self, num_uncertain: int) -> None:
        """Give out the first waiting tokens, all but those that hold one of the last `num_uncertain` bytes."""
        if not num_uncertain:
            self._ready.extend(self._waiting)
            self._waiting.clear()
            self._num_waiting = 0
        while self._waiting and self._num_waiting - len(self._waiting[0]) >= num_uncertain:
            self._num_waiting -= len(self._waiting[0])
            self._ready.append(self._waiting.popleft())

    def _cut(self, dropped: str) -> None:
        """Give out all waiting tokens, without the bytes of `dropped`, the settled text from the stop on."""
        waiting = b"".join(self._waiting)
        num_shown = _split_point(waiting[: len(waiting) - len(self._detokenizer.partial)], dropped)
        for piece in self._waiting:
            self._ready.append(piece[:num_shown])
            num_shown = max(0, num_shown - len(piece))
        self._waiting.clear()

    def _release(self, text: str) -> str:
        if text:
            self._released.append(text)
        return text


def final_text(vocabulary: Vocabulary, token_ids: Sequence[int], stops: Sequence[str], *, min_tokens: int = 0) -> str:
    """The text that a `TextStream` gives for these tokens, computed at once."""
    text = vocabulary.decode(token_ids)
    if len(token_ids) < min_tokens:
        return text
    ignored = vocabulary.byte_table.join(token_ids[: min_tokens - 1]) if min_tokens > 1 and stops else b""
    match = find_stop(text, stops, len(utf_8_decode(ignored, "replace", False)[0]))
    return text[: match[0]] if match else text


def _split_point(data: bytes, dropped: str) -> int:
    """The position in `data`, at a character, from which on it decodes to `dropped`."""
    kept = data.decode("utf-8", "replace").removesuffix(dropped)
    likely = max(0, len(data) - len(dropped.encode()))  # wrong only where `dropped` holds invalid bytes
    starts: list[int] = [likely, *range(len(data), -1, -1)]
    for start in starts:
        if data[start:].decode("utf-8", "replace") == dropped and data[:start].decode("utf-8", "replace") == kept:
            return start
    raise AssertionError("the dropped text is not the end of the data")
