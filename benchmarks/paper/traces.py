"""Traces: `Lengths` of prompts and answers as log-normal draws, arrivals, and the `Job`s they make."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHORTEST, LONGEST = 4, 2048


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal distribution of lengths, rounded and clipped to [SHORTEST, `longest`].

    Attributes:
        mean, deviation: before clipping.
    """

    mean: float
    deviation: float
    longest: int = LONGEST

    def draw(self, generator: np.random.Generator, count: int) -> NDArray[np.int64]:
        """int64[count] lengths."""
        variance = math.log(1 + (self.deviation / self.mean) ** 2)
        raw = generator.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), count)
        return np.clip(np.rint(raw).astype(np.int64), SHORTEST, self.longest)


@dataclass(frozen=True, slots=True)
class Job:
    """One request of a trace.

    Attributes:
        arrival: seconds from the start.
        prompt_len, output_len: tokens; every choice gets just `output_len`.
        decoder: that drives it.
        width: choices of parallel sampling, hypotheses of beam search; else 1.
        prefix_len: first tokens of the prompt that all jobs have in common.
        prompt: its tokens where they matter (KV that is found again); else None.
    """

    arrival: float
    prompt_len: int
    output_len: int
    decoder: str = "sampling"
    width: int = 1
    prefix_len: int = 0
    prompt: tuple[int, ...] | None = None


def poisson_arrivals(generator: np.random.Generator, count: int) -> NDArray[np.float64]:
    """float64[count] arrivals at 1 a second: gaps are exponential."""
    return np.cumsum(generator.exponential(1.0, count))


def bursty_arrivals(generator: np.random.Generator, count: int, variation: float = 4.0) -> NDArray[np.float64]:
    """float64[count] arrivals at 1 a second: gaps are gamma, with this coefficient of variation (1 is Poisson)."""
    shape = 1 / variation**2
    return np.cumsum(generator.gamma(shape, 1 / shape, count))
