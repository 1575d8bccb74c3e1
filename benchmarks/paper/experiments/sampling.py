"""One sequence for each request: Figures 12 (latency), 13 (batched requests) and 2 (what the memory holds)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.paper.capacity import Case
from benchmarks.paper.laboratory import Capacity, Laboratory
from benchmarks.paper.plots import plot_bars, plot_curves
from benchmarks.paper.report import Row
from benchmarks.paper.systems import FASTER_TRANSFORMER, MAX, ORACLE, OURS, POW2, System
from benchmarks.paper.workloads import WORKLOADS

MODELS = ("OPT-13B", "OPT-66B", "OPT-175B")
DATASETS = ("ShareGPT", "Alpaca")
SYSTEMS = (OURS, ORACLE, POW2, MAX, FASTER_TRANSFORMER)
_ABOVE_CAPACITY = 1.25  # times the capacity; what is measured there is bound by memory, as at the paper's rates

_PAPER_LENGTHS = {"ShareGPT": {"prompt": 161.3, "output": 338.0}, "Alpaca": {"prompt": 19.3, "output": 58.5}}  # means

# Rates that the curves sustain, read off the figure.
_PAPER_RATES = {
    ("ShareGPT", "OPT-13B"): {OURS: 1.75, ORACLE: 0.7, POW2: 0.4, MAX: 0.2, FASTER_TRANSFORMER: 0.08},
    ("ShareGPT", "OPT-66B"): {OURS: 0.9, ORACLE: 0.35},
    ("ShareGPT", "OPT-175B"): {OURS: 0.85, ORACLE: 0.3},
}
_PAPER_BATCHED = {
    "ShareGPT": {OURS: 30.4, ORACLE: 13.6, POW2: 9.8, MAX: 7.0},
    "Alpaca": {OURS: 132.4, ORACLE: 72.8},
}
_PAPER_BATCHED_RATES = {"ShareGPT": 2.0, "Alpaca": 30.0}
_PAPER_MEMORY = {
    "tokens": {OURS: 96.3, ORACLE: 38.2, POW2: 26.8, MAX: 20.4},
    "reserved": {ORACLE: 25.2, MAX: 13.3},
    "internal": {ORACLE: 0.0, MAX: 57.3},
    "external": {ORACLE: 36.6, MAX: 8.9},
}


def run(laboratory: Laboratory, folder: Path) -> list[Row]:
    """Figures 12, 13 and 2."""
    cases = [Case(System(name), model, data) for data in DATASETS for model in MODELS for name in SYSTEMS]
    capacities = laboratory.capacities(cases)
    panels = {
        f"{model}, {data}": {name: capacities[Case(System(name), model, data)].curve for name in SYSTEMS}
        for data in DATASETS
        for model in MODELS
    }
    plot_curves(folder / "figure-12.png", panels)
    rows = _length_rows(laboratory) + [_rate_row(case, capacities[case]) for case in cases] + _ratio_rows(capacities)
    return rows + _batched(laboratory, folder, capacities) + _waste(laboratory, folder, capacities)


def _length_rows(laboratory: Laboratory) -> list[Row]:
    """Mean and standard deviation of the lengths of the traces that were run."""
    rows = []
    for data, papers in _PAPER_LENGTHS.items():
        traces = [WORKLOADS[data].jobs(1.0, seed) for seed in laboratory.seeds]
        for part, paper in papers.items():
            lens = [[job.prompt_len if part == "prompt" else job.output_len for job in jobs] for jobs in traces]
            means, deviations = ([float(measure(trace)) for trace in lens] for measure in (np.mean, np.std))
            rows.append(Row.over("11", f"{data}, {part}s: mean length in tokens", paper, means))
            rows.append(Row.over("11", f"{data}, {part}s: standard deviation of the length", None, deviations))
    return rows


def _rate_row(case: Case, capacity: Capacity) -> Row:
    paper = _PAPER_RATES.get((case.workload, case.model), {}).get(case.system.name)
    what = f"{case.workload}, {case.model}, {case.system.name}: requests/s"
    return Row.over("12", what, paper, capacity.rates)


def _ratio_rows(capacities: dict[Case, Capacity]) -> list[Row]:
    """Ours against Orca (Oracle): what is left when the machine's speed cancels out."""
    rows = []
    for data in DATASETS:
        for model in MODELS:
            ours, oracle = (capacities[Case(System(name), model, data)].mean for name in (OURS, ORACLE))
            paper = _PAPER_RATES.get((data, model))
            what = f"{data}, {model}: {OURS} / {ORACLE}"
            rows.append(Row("12", what, round(paper[OURS] / paper[ORACLE], 2) if paper else None, ours / oracle))
    return rows


def _batched(laboratory: Laboratory, folder: Path, capacities: dict[Case, Capacity]) -> list[Row]:
    rows: list[Row] = []
    bars: dict[str, dict[str, float]] = {}
    for data in DATASETS:
        rate = _PAPER_BATCHED_RATES[data]
        for name in SYSTEMS[:-1]:
            case = Case(System(name), "OPT-13B", data)
            points = [case.at(at, seed) for at in (rate, _overload(capacities[case])) for seed in laboratory.seeds]
            values = [figures["batched"] for figures in laboratory.measure(points)]
            paper = _PAPER_BATCHED[data].get(name)
            at_rate, loaded = values[: len(laboratory.seeds)], values[len(laboratory.seeds) :]
            rows.append(Row.over("13", f"{data}, {name}: batched requests at {rate:g} requests/s", paper, at_rate))
            what = f"{data}, {name}: batched requests at {_ABOVE_CAPACITY} times its capacity"
            rows.append(Row.over("13", what, paper, loaded))
            bars[f"{data}\n{name}"] = {
                "paper": paper or 0.0,
                "ours, same rate": float(np.mean(at_rate)),
                "ours, overloaded": float(np.mean(loaded)),
            }
    plot_bars(folder / "figure-13.png", bars, y="batched requests")
    return rows


def _waste(laboratory: Laboratory, folder: Path, capacities: dict[Case, Capacity]) -> list[Row]:
    rows = []
    bars: dict[str, dict[str, float]] = {}
    for name in (MAX, POW2, ORACLE, OURS):
        case = Case(System(name), "OPT-13B", "ShareGPT")
        runs = laboratory.measure([case.at(_overload(capacities[case]), seed) for seed in laboratory.seeds])
        for use, papers in _PAPER_MEMORY.items():
            shares = [100 * figures[use] for figures in runs]
            bars.setdefault(name, {})[use] = float(np.mean(shares))
            rows.append(Row.over("2", f"{name}: {use}, % of the memory", papers.get(name), shares))
    plot_bars(folder / "figure-2.png", bars, y="% of the KV memory", is_stacked=True)
    return rows


def _overload(capacity: Capacity) -> float:
    return float(f"{_ABOVE_CAPACITY * capacity.mean:.4g}")
