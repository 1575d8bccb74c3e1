"""Histograms of what clients wait for: counted by hand, and read as Prometheus reads them."""

from __future__ import annotations

import itertools
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatserve.engine import Delta
from chatserve.engine.latencies import DecoderLatencies, Histogram, Latencies, Stopwatch
from chatserve.errors import GenerationError


@given(st.lists(st.floats(0, 100)), st.lists(st.floats(0.01, 50), min_size=1, max_size=5, unique=True))
def test_a_histogram_counts_values_up_to_each_bound(values: list[float], bounds: list[float]) -> None:
    histogram = Histogram(tuple(sorted(bounds)))
    for value in values:
        histogram.observe(value)
    for bound, count in histogram.cumulative():
        assert count == sum(value <= bound for value in values)
    assert histogram.cumulative()[-1] == (math.inf, len(values))
    assert histogram.total == pytest.approx(sum(values))


def delta(choice: int, finish_reason: str | None = None) -> Delta:
    return Delta(choice, "x", (), finish_reason)


def test_a_request_with_two_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(100)  # each look at it is a second later
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    watch, latencies = Stopwatch(), DecoderLatencies()
    for news in (delta(0), delta(1), delta(0), delta(1, "stop"), delta(0, "length"), None):
        watch.note(news, latencies)
    assert (sum(latencies.first_token.counts), latencies.first_token.total) == (1, 1.0)
    assert (sum(latencies.inter_token.counts), latencies.inter_token.total) == (3, 2.0 + 2.0 + 2.0)
    assert (sum(latencies.whole.counts), latencies.whole.total) == (1, 6.0)
    assert latencies.ends == {"stop": 1, "length": 1}


def test_a_request_that_breaks_has_no_latency_of_its_own() -> None:
    watch, latencies = Stopwatch(), DecoderLatencies()
    watch.note(GenerationError("broken"), latencies)
    assert latencies.ends == {"error": 1}
    assert sum(latencies.whole.counts) == 0


def test_decoders_are_counted_apart() -> None:
    latencies = Latencies()
    latencies.of("beam").ends["stop"] += 1
    assert latencies.of("beam").ends["stop"] == 1
    assert latencies.of("greedy").ends["stop"] == 0
    assert set(latencies.by_decoder) == {"beam", "greedy"}
