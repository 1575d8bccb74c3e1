"""Several sequences for each request: Figures 14 (latency) and 15 (blocks saved by sharing)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.paper.capacity import OVERLOAD, Case
from benchmarks.paper.laboratory import Laboratory
from benchmarks.paper.plots import plot_bars, plot_curves
from benchmarks.paper.report import Row
from benchmarks.paper.systems import MAX, ORACLE, OURS, POW2, System

WIDTHS = (2, 4, 6)
DECODERS = ("parallel", "beam")
SYSTEMS = (OURS, ORACLE, POW2, MAX)
_SHARES = (0.6, 0.9, 1.1)  # of the throughput

_PAPER_RATES = {  # read off the figure: ours, Orca (Oracle)
    ("parallel", 2): (12.0, 7.0),
    ("parallel", 4): (8.0, 3.5),
    ("parallel", 6): (7.0, 2.5),
    ("beam", 2): (13.5, 7.5),
    ("beam", 4): (9.0, 3.5),
    ("beam", 6): (7.0, 3.0),
}
_PAPER_SAVED = {
    ("Alpaca", "parallel"): (6.1, 8.5, 9.8),
    ("Alpaca", "beam"): (37.6, 53.1, 55.2),
    ("ShareGPT", "parallel"): (16.2, None, 30.5),
    ("ShareGPT", "beam"): (44.3, None, 66.3),
}


def run(laboratory: Laboratory, folder: Path) -> list[Row]:
    """Figures 14 and 15."""
    return _rates(laboratory, folder) + _saved(laboratory, folder)


def _rates(laboratory: Laboratory, folder: Path) -> list[Row]:
    """Throughput under overload: a search as for Figure 12 needs longer traces than beams are simulated for."""
    kinds = [(decoder, width) for decoder in DECODERS for width in WIDTHS]
    cases = {(kind, name): _case(name, "Alpaca", *kind) for kind in kinds for name in SYSTEMS}
    throughputs = _throughputs(laboratory, list(cases.values()))
    curves = _curves(laboratory, throughputs)
    panels = {f"{kind[0]}, width {kind[1]}": {name: curves[cases[kind, name]] for name in SYSTEMS} for kind in kinds}
    plot_curves(folder / "figure-14.png", panels)
    rows = []
    for kind in kinds:
        label = f"{kind[0]} {kind[1]}"
        papers = dict(zip((OURS, ORACLE), _PAPER_RATES[kind], strict=True))
        found = {name: throughputs[cases[kind, name]] for name in SYSTEMS}
        rows += [
            Row.over("14", f"{label}, {name}: requests/s", papers.get(name), values) for name, values in found.items()
        ]
        ratio = float(np.mean(found[OURS]) / np.mean(found[ORACLE]))
        rows.append(Row("14", f"{label}: {OURS} / {ORACLE}", round(papers[OURS] / papers[ORACLE], 2), ratio))
    return rows


def _throughputs(laboratory: Laboratory, cases: list[Case]) -> dict[Case, list[float]]:
    """Requests a second that each case serves when all are there at once, for each seed."""
    points = [case.at(OVERLOAD, seed) for case in cases for seed in laboratory.seeds]
    values = iter([figures["throughput"] for figures in laboratory.measure(points)])
    return {case: [next(values) for _ in laboratory.seeds] for case in cases}


def _curves(laboratory: Laboratory, throughputs: dict[Case, list[float]]) -> dict[Case, list[tuple[float, float]]]:
    """(Rate, latency) points around the throughput of the first seed."""
    keys = [(case, float(f"{share * found[0]:.4g}")) for case, found in throughputs.items() for share in _SHARES]
    values = laboratory.measure([case.at(rate, 0) for case, rate in keys])
    curves: dict[Case, list[tuple[float, float]]] = {case: [] for case in throughputs}
    for (case, rate), figures in zip(keys, values, strict=True):
        curves[case].append((rate, figures["hour latency"]))
    return curves


def _saved(laboratory: Laboratory, folder: Path) -> list[Row]:
    keys = [(data, decoder, width) for data, decoder in _PAPER_SAVED for width in WIDTHS]
    points = [_case(OURS, data, decoder, width).at(_saving_rate(data, width), 0) for data, decoder, width in keys]
    rows = []
    bars: dict[str, dict[str, float]] = {}
    for (data, decoder, width), figures in zip(keys, laboratory.measure(points), strict=True):
        paper = _PAPER_SAVED[data, decoder][WIDTHS.index(width)]
        saved = 100 * figures["shared"]
        rows.append(Row("15", f"{data}, {decoder} {width}: blocks saved, %", paper, saved))
        bars.setdefault(f"{data}\n{decoder}", {})[f"width {width}"] = saved
    plot_bars(folder / "figure-15.png", bars, y="blocks saved by sharing, %")
    return rows


def _case(name: str, data: str, decoder: str, width: int) -> Case:
    return Case(System(name), "OPT-13B", f"{data} {decoder} {width}")


def _saving_rate(data: str, width: int) -> float:
    """Well below capacity: nothing is preempted, and sharing does not depend on the load."""
    return (8.0 if data == "Alpaca" else 0.8) / width
