"""Block sizes 1 to 256: end-to-end latency (Figure 18b)."""

from __future__ import annotations

from pathlib import Path

from benchmarks.paper.capacity import Case
from benchmarks.paper.laboratory import Laboratory
from benchmarks.paper.plots import plot_curves
from benchmarks.paper.report import Row
from benchmarks.paper.systems import System
from benchmarks.paper.workloads import SHORT_SHAREGPT

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_LOAD = 1.05  # times the capacity at 16 tokens: so near to it, small differences show
_PAPER_GOOD = {"ShareGPT": (16, 32, 64, 128), "Alpaca": (16, 32)}


def run(laboratory: Laboratory, folder: Path) -> list[Row]:
    """Figure 18b."""
    rows = []
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for data in _PAPER_GOOD:
        capacity = laboratory.capacities([Case(System(), "OPT-13B", data)])
        rate = float(f"{_LOAD * next(iter(capacity.values())).mean:.3g}")
        trace = SHORT_SHAREGPT.name if data == "ShareGPT" else data
        points = [Case(System(block_size=size), "OPT-13B", trace).at(rate, 0) for size in SIZES]
        latencies = [figures["hour latency"] for figures in laboratory.measure(points)]
        panels[data] = {f"{rate:g} requests/s": list(zip(SIZES, latencies, strict=True))}
        for size, latency in zip(SIZES, latencies, strict=True):
            praised = " (among the paper's best)" if size in _PAPER_GOOD[data] else ""
            rows.append(Row("18b", f"{data}, {rate:g} requests/s, block size {size}{praised}: s/token", None, latency))
    plot_curves(folder / "figure-18b.png", panels, x="tokens in a block", limit=None, is_log=True)
    return rows
