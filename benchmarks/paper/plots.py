"""Plots: curves of latency against rate in panels, and bars, as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure

Curve: TypeAlias = Sequence[tuple[float, float]]
_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")


def plot_curves(
    path: Path,
    panels: Mapping[str, Mapping[str, Curve]],
    *,
    x: str = "requests a second",
    y: str = "normalised latency, s/token",
    limit: float | None = 1.2,
    is_log: bool = False,
) -> None:
    """One panel for each title, one line for each name; `limit` is the top of the vertical axis."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(4.5 * columns, 3.2 * rows), squeeze=False)
    for axis, (title, curves) in zip(axes.flat, panels.items(), strict=False):
        for (name, curve), colour in zip(curves.items(), _COLOURS, strict=False):
            axis.plot(*zip(*curve, strict=True), marker="o", markersize=3, label=name, color=colour)
        axis.set(title=title, xlabel=x, ylabel=y)
        axis.set_ylim(0, limit)
        if is_log:
            axis.set_xscale("log", base=2)
        axis.legend(fontsize=7)
    _save(figure, path)


def plot_bars(path: Path, groups: Mapping[str, Mapping[str, float]], *, y: str, is_stacked: bool = False) -> None:
    """A bar, or a stack, for each group and name; `groups` maps the labels below the axis to the bars' heights."""
    names = list(next(iter(groups.values())))
    figure, axis = pyplot.subplots(figsize=(1.5 + 1.3 * len(groups), 3.4))
    bottoms = [0.0] * len(groups)
    width = 0.6 if is_stacked else 0.8 / len(names)
    for index, name in enumerate(names):
        heights = [bars[name] for bars in groups.values()]
        places = [place + (0 if is_stacked else (index - (len(names) - 1) / 2) * width) for place in range(len(groups))]
        axis.bar(places, heights, width, bottom=bottoms if is_stacked else None, label=name, color=_COLOURS[index])
        if is_stacked:
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    axis.set_xticks(range(len(groups)), list(groups))
    axis.set_ylabel(y)
    axis.legend(fontsize=7)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
