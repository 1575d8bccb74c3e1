"""`ChoiceOutput`: from the published tokens of one choice to the deltas a client sees."""

from __future__ import annotations

from collections import deque
from typing import Any

from chatserve.decoding.choice import Choice
from chatserve.decoding.group import Rules
from chatserve.decoding.samples import Sample
from chatserve.engine.generation import Delta, PublishedToken, TokenLogprob
from chatserve.text import TextStream, Vocabulary


class ChoiceOutput:
    """Text stream and token records of one choice.

    Attributes:
        num_tokens: tokens published so far.
        is_finished: the delta with the finish reason is out.
    """

    __slots__ = ("_stream", "_unsent", "_vocabulary", "_wants_tokens", "index", "is_finished", "num_tokens")

    def __init__(self, index: int, rules: Rules, wants_tokens: bool) -> None:
        self.index = index
        self.num_tokens = 0
        self.is_finished = False
        self._vocabulary = rules.vocabulary
        self._stream = TextStream(rules.vocabulary, rules.stop_strings, min_tokens=rules.min_tokens)
        self._wants_tokens = wants_tokens
        self._unsent: deque[Sample] = deque()  # tokens whose bytes are not certain yet

    def advance(self, choice: Choice, trace: tuple[dict[str, Any], ...] = ()) -> Delta | None:
        """What is new in the choice since the last call; None when nothing is."""
        new, reason = choice.samples[self.num_tokens :], choice.finish_reason
        if self.is_finished or (not new and reason is None and not trace):
            return None
        self.num_tokens += len(new)
        text = self._stream.push_one(new[0].token) if len(new) == 1 else self._stream.push([item.token for item in new])
        if reason is not None:
            text += self._stream.finish()
            self.is_finished = True
        return Delta(self.index, text, self._certain_tokens(new) if self._wants_tokens else (), reason, trace)

    def _certain_tokens(self, new: list[Sample]) -> tuple[PublishedToken, ...]:
        self._unsent.extend(new)
        return tuple(published(self._unsent.popleft(), shown, self._vocabulary) for shown in self._stream.take_bytes())


def published(sample: Sample, shown: bytes, vocabulary: Vocabulary) -> PublishedToken:
    """The record of a token that shows these bytes."""
    top = tuple(TokenLogprob(token, vocabulary.token_bytes(token), logprob) for token, logprob in sample.top)
    return PublishedToken(sample.token, shown, sample.logprob, top)
