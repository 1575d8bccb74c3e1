"""What the paper left out: paging and iteration-level scheduling one without the other, and bursts of arrivals."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.paper.capacity import Case
from benchmarks.paper.laboratory import Laboratory
from benchmarks.paper.plots import plot_curves
from benchmarks.paper.report import Row
from benchmarks.paper.systems import FASTER_TRANSFORMER, MAX, ORACLE, OURS, PAGED_BATCHES, POW2, System

FIGURE = "beside the paper"
_COMBINATIONS = {
    FASTER_TRANSFORMER: "contiguous memory, request-level scheduling",
    PAGED_BATCHES: "paged memory, request-level scheduling",
    MAX: "contiguous memory, iteration-level scheduling",
    OURS: "paged memory, iteration-level scheduling",
}
_BURSTY_RATES = (0.5, 1.0, 2.0)
_SHOWN_RATE = 1.0
_BURSTY_FIGURES = ("latency p50", "latency p95", "latency p99", "first token p50", "first token p99", "goodput")


def run(laboratory: Laboratory, folder: Path) -> list[Row]:
    """The four combinations, and bursts."""
    return _combinations(laboratory) + _bursts(laboratory, folder)


def _combinations(laboratory: Laboratory) -> list[Row]:
    cases = {name: Case(System(name), "OPT-13B", "ShareGPT") for name in _COMBINATIONS}
    found = laboratory.capacities(cases.values())
    return [
        Row.over(FIGURE, f"ShareGPT, OPT-13B, {what}: requests/s", None, found[cases[name]].rates)
        for name, what in _COMBINATIONS.items()
    ]


def _bursts(laboratory: Laboratory, folder: Path) -> list[Row]:
    """Gaps between arrivals with a coefficient of variation of 4; goodput: 2 s to the first token, 0.1 s each more."""
    systems = (OURS, ORACLE, POW2, MAX)
    keys = [(name, rate, seed) for rate in _BURSTY_RATES for name in systems for seed in laboratory.seeds]
    points = [Case(System(name), "OPT-13B", "ShareGPT").at(rate, seed, is_bursty=True) for name, rate, seed in keys]
    found = dict(zip(keys, laboratory.measure(points), strict=True))

    def values(name: str, rate: float, figure: str) -> list[float]:
        return [found[name, rate, seed][figure] for seed in laboratory.seeds]

    panels = {
        f"{figure}, {_unit(figure)}": {
            name: [(rate, float(np.mean(values(name, rate, figure)))) for rate in _BURSTY_RATES] for name in systems
        }
        for figure in ("latency p99", "first token p99", "goodput")
    }
    plot_curves(folder / "bursts.png", panels, y="", limit=None)
    rows = []
    for name in systems:
        for figure in _BURSTY_FIGURES:
            what = f"bursts, ShareGPT, {_SHOWN_RATE:g} requests/s, {name}: {figure}, {_unit(figure)}"
            rows.append(Row.over(FIGURE, what, None, values(name, _SHOWN_RATE, figure)))
    return rows


def _unit(figure: str) -> str:
    if figure == "goodput":
        return "requests/s"
    return "s/token" if figure.startswith("latency") else "s"
