"""What the engine answers: `Sample`, one token of an answer, and `TopK`, the best continuations of several rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Sample(NamedTuple):
    """One token of an answer.

    Attributes:
        token: its id.
        logprob: log-probability at stage *processed* (before temperature and filters); None: forced by the decoder.
        top: alternatives as (token, logprob), best first; filled when the request asked for them.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class TopK:
    """The k best next tokens of n rows, best first, ties by lower id.

    Attributes:
        tokens: int64[n, k].
        logprobs: float32[n, k], stage *processed*. Entries may be -inf (forbidden tokens): never append those.
    """

    __slots__ = ("_tops", "logprobs", "tokens")

    def __init__(
        self,
        tokens: NDArray[np.int64],
        logprobs: NDArray[np.float32],
        tops: list[tuple[tuple[int, float], ...]] | None = None,
    ) -> None:
        self.tokens = tokens
        self.logprobs = logprobs
        self._tops = tops

    def sample(self, row: int, column: int) -> Sample:
        """The Sample for candidate `column` of `row`, with the alternatives that the request asked for."""
        top = self._tops[row] if self._tops else ()
        return Sample(int(self.tokens[row, column]), float(self.logprobs[row, column]), top)
