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

    __slots__ = ("_checked", "finish_reason", "index", "samples", "source")

    def __init__(self, index: int) -> None:
        self.index = index
        self.samples: list[Sample] = []
        self.finish_reason: str | None = None
        self.source: Sequence | None = None
        self._checked: tuple[Sequence, int] | None = None  # a sequence, as of a version, known to begin with our tokens

    def publish(self, sequence: Sequence, length: int | None) -> None:
        """Become the first `length` generated tokens of `sequence` (None: all); finish when its end is among them.

        Raises DecoderError when that would take published tokens back. An equal or shorter prefix changes nothing.
        """
        available = sequence.num_generated
        length = available if length is None else min(length, available)
        self._check_extends(sequence, length)
        self.source = sequence
        if length >= len(self.samples):
            self._checked = (sequence, sequence._version)
        if length > len(self.samples):
            if self.finish_reason:
                raise DecoderError(f"choice {self.index} has finished; nothing can be published behind its end")
            self.samples += sequence._samples[len(self.samples) : length]
        if self.finish_reason is None and length == available == len(self.samples):
            self.finish_reason = sequence.ended

    def finish(self, reason: str) -> None:
        """End the choice with what is published; a second end changes nothing."""
        self.finish_reason = self.finish_reason or reason

    def _check_extends(self, sequence: Sequence, length: int) -> None:
        if self._checked == (sequence, sequence._version):
            return
        for position, (old, new) in enumerate(zip(self.samples, sequence._samples[:length], strict=False)):
            if old.token != new.token:
                raise DecoderError(
                    f"choice {self.index} has published token {old.token} at position {position};"
                    f" it cannot become {new.token} (publish only what can no longer change)"
                )
