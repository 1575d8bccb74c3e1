"""The search for the rate that a system sustains, and the measures it rests on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.paper.capacity import bisect
from benchmarks.paper.outcome import Outcome, Served
from benchmarks.paper.plots import plot_bars
from benchmarks.paper.points import goodput
from benchmarks.paper.report import Row, write_report
from benchmarks.paper.traces import Job


@pytest.mark.parametrize("guess", [0.5, 3.0, 15.0])
def test_bisection_finds_the_rate_from_any_guess(guess: float) -> None:
    assert bisect(lambda rate: 0.05 + max(0.0, rate - 3.6) * 9.5, guess) == pytest.approx(3.7, rel=0.04)


def test_a_trace_too_short_to_queue_is_refused() -> None:
    with pytest.raises(ValueError, match="stays below 1 s a token"):
        bisect(lambda rate: 0.05, 3.0)


def _queue(rate: float, service_rate: float, count: int) -> Outcome:
    """A single server with even gaps and even service: the n-th waits for n times the difference of the two."""
    arrivals = np.arange(1, count + 1) / rate
    starts = np.maximum(arrivals, np.arange(1, count + 1) / service_rate)
    jobs = [Job(float(arrival), 10, 100) for arrival in arrivals]
    return Outcome(served=[Served(job, float(at), float(at) + 1.0) for job, at in zip(jobs, starts, strict=True)])


def test_latency_is_continued_to_the_length_of_the_papers_traces() -> None:
    """What 300 requests show is continued to what 3000 show."""
    short, long = _queue(2.0, 1.6, 300), _queue(2.0, 1.6, 3000)
    assert short.latency_after(1500.0) == pytest.approx(float(long.normalised_latencies().mean()), rel=0.01)


def test_a_server_that_keeps_up_shows_the_same_latency_after_any_time() -> None:
    outcome = _queue(1.5, 1.6, 300)
    assert outcome.latency_after(3600.0) == pytest.approx(0.01)


def test_throughput_counts_the_middle_of_the_run() -> None:
    assert _queue(2.0, 1.6, 300).throughput == pytest.approx(1.6)


def test_goodput_counts_requests_that_meet_both_bounds() -> None:
    job = Job(0.0, 10, 100)
    late, slow, good = Served(job, 3.0, 4.0), Served(job, 1.0, 20.0), Served(job, 1.0, 5.0)
    assert goodput(Outcome(served=[late, slow, good])) == pytest.approx(1 / 20)


def test_a_row_shows_the_ratio_only_where_the_paper_has_a_number() -> None:
    assert Row("13", "batched", 30.4, 15.2, 0.25).cells() == ["13", "batched", "30.4", "15.2 ± 0.2", "0.50"]
    assert Row("13", "batched", None, 15.2).cells() == ["13", "batched", "", "15.2", ""]


def test_a_report_lists_rows_and_figures(tmp_path: Path) -> None:
    (tmp_path / "paper").mkdir()
    plot_bars(tmp_path / "paper" / "figure-2.png", {"Orca": {"tokens": 20.0, "reserved": 80.0}}, y="%", is_stacked=True)
    write_report(tmp_path, [Row("2", "Orca: tokens, %", 20.4, 20.0)])
    text = (tmp_path / "paper.md").read_text(encoding="utf-8")
    assert "| 2 | Orca: tokens, % | 20.4 | 20 | 0.98 |" in text
    assert text.endswith("![figure-2](paper/figure-2.png)\n")
