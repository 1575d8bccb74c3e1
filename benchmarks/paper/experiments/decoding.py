"""Several sequences for each request: Figures 14 (latency) and 15 (blocks saved by sharing)."""

from __future__ import annotations

from pathlib import Path

from benchmarks.paper.capacity import Case
from benchmarks.paper.laboratory import Laboratory
from benchmarks.paper.plots import plot_bars, plot_curves
from benchmarks.paper.report import Row
from benchmarks.paper.systems import MAX, ORACLE, OURS, POW2, System

WIDTHS = (2, 4, 6)
DECODERS = ("parallel", "beam")
SYSTEMS = (OURS, ORACLE, POW2, MAX)

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
    kinds = [(decoder, width) for decoder in DECODERS for width in WIDTHS]
    capacities = laboratory.capacities([_case(name, "Alpaca", *kind) for kind in kinds for name in SYSTEMS])
    panels = {
        f"{decoder}, width {width}": {name: capacities[_case(name, "Alpaca", decoder, width)].curve for name in SYSTEMS}
        for decoder, width in kinds
    }
    plot_curves(folder / "figure-14.png", panels)
    rows = []
    for kind in kinds:
        found = {name: capacities[_case(name, "Alpaca", *kind)] for name in SYSTEMS}
        papers = dict(zip((OURS, ORACLE), _PAPER_RATES[kind], strict=True))
        label = f"{kind[0]} {kind[1]}"
        for name, capacity in found.items():
            what = f"{label}, {name}: requests/s"
            rows.append(Row.over("14", what, papers.get(name), capacity.rates))
        ratio = found[OURS].mean / found[ORACLE].mean
        rows.append(Row("14", f"{label}: {OURS} / {ORACLE}", round(papers[OURS] / papers[ORACLE], 2), ratio))
    return rows


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
