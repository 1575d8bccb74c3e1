"""`Latencies`: how long clients wait, as histograms by decoder."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from itertools import accumulate

from chatserve.engine.generation import Delta
from chatserve.errors import ChatserveError

FIRST_TOKEN_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)
INTER_TOKEN_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
WHOLE_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)


class Histogram:
    """Counts of values by upper bounds, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[float, int]]:
        """(bound, values up to it), the last bound infinite."""
        return list(zip((*self.bounds, float("inf")), accumulate(self.counts), strict=True))


class DecoderLatencies:
    """Latencies of the requests of one decoder.

    Attributes:
        first_token: from acceptance to the first news of the first choice, in seconds.
        inter_token: between successive news of one choice, in seconds.
        whole: from acceptance to the end, of requests that ended by themselves, in seconds.
        ends: choices by finish reason; requests that broke or were abandoned, as "error" and "abort".
    """

    __slots__ = ("ends", "first_token", "inter_token", "whole")

    def __init__(self) -> None:
        self.first_token = Histogram(FIRST_TOKEN_BOUNDS)
        self.inter_token = Histogram(INTER_TOKEN_BOUNDS)
        self.whole = Histogram(WHOLE_BOUNDS)
        self.ends: Counter[str] = Counter()


class Latencies:
    """Latencies of all requests, by decoder. Use it on one thread.

    Attributes:
        num_prompt_tokens: tokens of all prompts that were accepted.
    """

    def __init__(self) -> None:
        self.num_prompt_tokens = 0
        self.by_decoder: dict[str, DecoderLatencies] = {}

    def of(self, decoder: str) -> DecoderLatencies:
        found = self.by_decoder.get(decoder)
        return found if found is not None else self.by_decoder.setdefault(decoder, DecoderLatencies())


class Stopwatch:
    """Times one request, from its making on."""

    __slots__ = ("_last", "_started")

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._last: dict[int, float] = {}  # when each choice had news last

    def note(self, news: Delta | ChatserveError | None, latencies: DecoderLatencies) -> None:
        """What the request's listener hears."""
        now = time.monotonic()
        if isinstance(news, Delta):
            self._note_delta(news, now, latencies)
        elif news is None:
            latencies.whole.observe(now - self._started)
        else:
            latencies.ends["error"] += 1

    def _note_delta(self, delta: Delta, now: float, latencies: DecoderLatencies) -> None:
        before = self._last.get(delta.choice)
        if before is not None:
            latencies.inter_token.observe(now - before)
        elif not self._last:
            latencies.first_token.observe(now - self._started)
        self._last[delta.choice] = now
        if delta.finish_reason is not None:
            latencies.ends[delta.finish_reason] += 1
