"""`find_capacity`: the request rate at which a system's normalised latency passes 1 s a token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.paper.points import Point
from benchmarks.paper.systems import System

LIMIT = 1.0  # seconds a token
OVERLOAD = 1000.0  # requests a second: all arrive at once
_ABOVE_THROUGHPUT = 1.1  # an hour's queue may grow a little before it costs 1 s a token
_BRACKET = 1.12
_NUM_HALVINGS = 1
_MOST_TIMES_GUESS = 10
_SHARE_BELOW = 0.6


@dataclass(frozen=True, slots=True)
class Case:
    """A system, a model, and what is asked of them."""

    system: System
    model: str
    workload: str

    def at(self, rate: float, seed: int, *, is_bursty: bool = False) -> Point:
        return Point(self.system, self.model, self.workload, rate, seed, is_bursty)


def find_capacity(case: Case, seed: int, guess: float | None = None) -> tuple[float, list[tuple[float, float]]]:
    """The rate that the case sustains, and (rate, latency) points, by rate.

    Without a guess the search begins at the throughput under overload, and a point far below it is measured too.
    """
    points: list[tuple[float, float]] = []

    def latency(rate: float) -> float:
        rate = float(f"{rate:.4g}")
        points.append((rate, case.at(rate, seed).measure()["hour latency"]))
        return points[-1][1]

    if guess is None:
        guess = _ABOVE_THROUGHPUT * case.at(OVERLOAD, seed).measure()["throughput"]
        latency(_SHARE_BELOW * guess)
    return bisect(latency, guess), sorted(points)


def bisect(latency: Callable[[float], float], guess: float) -> float:
    """The rate at which `latency` passes LIMIT, searched for on both sides of the guess, to within 4 per cent.

    Raises ValueError when no rate passes it: the trace is too short for a queue to grow in it.
    """
    low, high = guess / _BRACKET, guess * _BRACKET
    at_low, at_high = latency(low), latency(high)
    while at_low > LIMIT:
        low, high, at_high = low / _BRACKET, low, at_low
        at_low = latency(low)
    while at_high < LIMIT:
        if high > _MOST_TIMES_GUESS * guess:
            raise ValueError(f"the latency stays below {LIMIT:g} s a token up to {high:g} requests a second")
        low, high, at_low = high, high * _BRACKET, at_high
        at_high = latency(high)
    for _ in range(_NUM_HALVINGS):
        middle = (low * high) ** 0.5
        at_middle = latency(middle)
        if at_middle < LIMIT:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return low + (high - low) * (LIMIT - at_low) / (at_high - at_low)
