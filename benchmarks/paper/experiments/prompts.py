"""Long prompts: a shared prefix (Figure 16) and conversations (Figure 17)."""

from __future__ import annotations

from pathlib import Path

from benchmarks.paper.capacity import Case
from benchmarks.paper.laboratory import Laboratory
from benchmarks.paper.plots import plot_curves
from benchmarks.paper.report import Row
from benchmarks.paper.systems import MAX, ORACLE, OURS, POW2, System

_PAPER_PREFIX = {80: (37.5, 22.5, 1.67), 341: (35.0, 10.0, 3.58)}  # ours, Orca (Oracle), ratio
_PAPER_CHATBOT = {OURS: 0.57, ORACLE: 0.28, POW2: 0.28, MAX: 0.28}


def run(laboratory: Laboratory, folder: Path) -> list[Row]:
    """Figures 16 and 17."""
    return _prefixes(laboratory, folder) + _chatbot(laboratory, folder)


def _prefixes(laboratory: Laboratory, folder: Path) -> list[Row]:
    systems = (OURS, ORACLE)
    cases = {
        (length, name): Case(System(name), "LLaMA-13B", f"translation {length}")
        for length in _PAPER_PREFIX
        for name in systems
    }
    found = laboratory.capacities(cases.values())
    panels = {
        f"prefix of {length} tokens": {name: found[cases[length, name]].curve for name in systems}
        for length in _PAPER_PREFIX
    }
    plot_curves(folder / "figure-16.png", panels)
    rows = []
    for length, (*rates, ratio) in _PAPER_PREFIX.items():
        ours, oracle = (found[cases[length, name]] for name in systems)
        for name, capacity, rate in zip(systems, (ours, oracle), rates, strict=True):
            what = f"prefix of {length} tokens, {name}: requests/s"
            rows.append(Row.over("16", what, rate, capacity.rates))
        rows.append(Row("16", f"prefix of {length} tokens: {OURS} / {ORACLE}", ratio, ours.mean / oracle.mean))
    return rows


def _chatbot(laboratory: Laboratory, folder: Path) -> list[Row]:
    cases = {name: Case(System(name), "OPT-13B", "chatbot") for name in _PAPER_CHATBOT}
    found = laboratory.capacities(cases.values())
    plot_curves(folder / "figure-17.png", {"chatbot": {name: found[case].curve for name, case in cases.items()}})
    rows = [
        Row.over("17", f"chatbot, {name}: requests/s", paper, found[cases[name]].rates)
        for name, paper in _PAPER_CHATBOT.items()
    ]
    ratio = found[cases[OURS]].mean / found[cases[ORACLE]].mean
    return [*rows, Row("17", f"chatbot: {OURS} / {ORACLE}", 2.0, ratio)]
