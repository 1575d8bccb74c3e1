"""Results as a table and as plots."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from benchmarks.peers.comparison import Result

OURS = "chatserve"


def table(results: list[Result]) -> str:
    """A Markdown table: median, slowest and fastest rate of every engine, and how many times as fast ours is."""
    lines = ["| work | engine | tok/s | slowest to fastest | ours / theirs |", "|---|---|---|---|---|"]
    for title, group in _by_workload(results):
        ours = next((result.median for result in group if result.engine == OURS), None)
        for result in group:
            ratio = f"{ours / result.median:.2f}" if ours and result.engine != OURS else ""
            spread = f"{min(result.rates):.1f} to {max(result.rates):.1f}"
            lines.append(f"| {title} | {result.engine} | {result.median:.1f} | {spread} | {ratio} |")
    return "\n".join(lines) + "\n"


def save(results: list[Result], folder: Path) -> list[Path]:
    """Write ``results.json``, ``results.md`` and a plot ``<workload>.png`` each; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers, text = folder / "results.json", folder / "results.md"
    numbers.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    text.write_text(table(results))
    return [numbers, text, *(_plot(title, group, folder) for title, group in _by_workload(results))]


def _by_workload(results: list[Result]) -> list[tuple[str, list[Result]]]:
    return [(title, list(group)) for title, group in groupby(results, lambda result: result.workload)]


def _plot(title: str, results: list[Result], folder: Path) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 0.5 * len(results) + 1.2), layout="constrained")
    for place, result in enumerate(reversed(results)):
        below, above = result.median - min(result.rates), max(result.rates) - result.median
        colour = "tab:blue" if result.engine == OURS else "tab:gray"
        axes.barh(place, result.median, xerr=[[below], [above]], color=colour, capsize=3)
    axes.set_yticks(range(len(results)), [result.engine for result in reversed(results)])
    axes.set_xlabel("tokens a second (median; slowest and fastest round)")
    axes.set_title(title)
    path = folder / f"{title.replace(',', '').replace(' ', '-')}.png"
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
