"""`Laboratory`: runs many points or searches at once, one process for each core."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import numpy as np

from benchmarks.paper.capacity import Case, find_capacity
from benchmarks.paper.points import Point
from chatserve.engine.garbage import relax_garbage_collection

_Argument = TypeVar("_Argument")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Capacity:
    """The request rate that a case sustains.

    Attributes:
        rates: requests a second, one for each seed.
        curve: (rate, normalised latency after an hour) points of the first seed, by rate.
    """

    rates: list[float]
    curve: list[tuple[float, float]]

    @property
    def mean(self) -> float:
        return float(np.mean(self.rates))


class Laboratory:
    """Use it as a context manager; it holds the processes.

    Args:
        num_processes: None: one for each core.
        num_seeds: runs of each case, from which spreads are computed.
    """

    def __init__(self, num_processes: int | None = None, num_seeds: int = 3) -> None:
        self.seeds = range(num_seeds)
        # Spawned, because a forked process may not use the OpenMP runtime that this one has begun to use.
        self._pool = ProcessPoolExecutor(
            num_processes or os.cpu_count(), multiprocessing.get_context("spawn"), relax_garbage_collection
        )

    def __enter__(self) -> Laboratory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[_Argument], _Answer], arguments: Iterable[_Argument]) -> list[_Answer]:
        """The answers of a module-level function, in the order of the arguments."""
        return list(self._pool.map(function, arguments))

    def measure(self, points: Sequence[Point]) -> list[dict[str, float]]:
        """The figures of each point."""
        return self.map(Point.measure, points)

    def capacities(self, cases: Iterable[Case]) -> dict[Case, Capacity]:
        """The capacity of each case, over the seeds; the slow ones are begun first.

        What the first seed finds is where the search of the others begins.
        """
        ordered = sorted(cases, key=lambda case: not case.system.is_paged)
        first = self.map(_search, [(case, 0, None) for case in ordered])
        jobs = [(case, seed, rate) for case, (rate, _) in zip(ordered, first, strict=True) for seed in self.seeds[1:]]
        found = iter(self.map(_search, jobs))
        others = [[next(found) for _ in self.seeds[1:]] for _ in ordered]
        return {
            case: Capacity([rate for rate, _ in (one, *more)], one[1])
            for case, one, more in zip(ordered, first, others, strict=True)
        }


def _search(job: tuple[Case, int, float | None]) -> tuple[float, list[tuple[float, float]]]:
    return find_capacity(*job)
