"""`Choice`: the published output of one choice, as tokens; it only ever grows."""

from __future__ import annotations

from chatserve.decoding.errors import DecoderError
from chatserve.decoding.samples import Sample
from chatserve.decoding.sequence import Sequence


class Choice:
    """What the client has been promised of choice `index`.

    Attributes:
        samples: published tokens.
        finish_reason: "stop" or "length" once the choice is finished.
        source: the sequence it was last published from, also when that published nothing new.
    """

    __slots__ = ("_known", "_known_version", "finish_reason", "index", "samples", "source")

    def __init__(self, index: int) -> None:
        self.index = index
        self.samples: list[Sample] = []
        self.finish_reason: str | None = None
        self.source: Sequence | None = None
        self._known: Sequence | None = None  # a sequence, as of a version, that is known to begin with our tokens
        self._known_version = 0

    def publish(self, sequence: Sequence, length: int | None) -> None:
        """Become the first `length` generated tokens of `sequence` (None: all); finish when its end is among them.

        Raises DecoderError when that would take published tokens back. An equal or shorter prefix changes nothing.
        """
        available, published = len(sequence._samples), len(self.samples)
        length = available if length is None else min(length, available)
        if self._known is not sequence or self._known_version != sequence._version:
            self._check_extends(sequence, length)
        self.source = sequence
        if length >= published:
            self._known, self._known_version = sequence, sequence._version
        if length > published:
            if self.finish_reason:
                raise DecoderError(f"choice {self.index} has finished; nothing can be published behind its end")
            self.samples += sequence._samples[published:length]
        if self.finish_reason is None and length == available == len(self.samples):
            self.finish_reason = sequence.ended

    def finish(self, reason: str) -> None:
        """End the choice with what is published; a second end changes nothing."""
        self.finish_reason = self.finish_reason or reason

    def _check_extends(self, sequence: Sequence, length: int) -> None:
        for position, (old, new) in enumerate(zip(self.samples, sequence._samples[:length], strict=False)):
            if old.token != new.token:
                raise DecoderError(
                    f"choice {self.index} has published token {old.token} at position {position};"
                    f" it cannot become {new.token} (publish only what can no longer change)"
                )
