"""`Row`: one number of the paper beside ours; and the table of them all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        figure: of the paper, or "beside the paper".
        what: is measured, its unit included.
        paper: its number; None where it has none.
        ours: the mean over seeds.
        spread: standard deviation over the seeds; None for a single run.
    """

    figure: str
    what: str
    paper: float | None
    ours: float
    spread: float | None = None

    @staticmethod
    def over(figure: str, what: str, paper: float | None, values: Sequence[float]) -> Row:
        """A row for the values of several seeds."""
        spread = float(np.std(values)) if len(values) > 1 else None
        return Row(figure, what, paper, float(np.mean(values)), spread)

    def cells(self) -> list[str]:
        ours = _readable(self.ours, 3)
        if self.spread is not None:
            is_rounding = self.spread < 1e-9 * abs(self.ours)
            ours += " ± 0" if is_rounding else f" ± {_readable(self.spread, 1)}"
        paper, ratio = "", ""
        if self.paper is not None:
            paper = f"{self.paper:g}"
            ratio = f"{self.ours / self.paper:.2f}" if self.paper else ""
        return [self.figure, self.what, paper, ours, ratio]


def _readable(number: float, num_digits: int) -> str:
    """With so many significant digits, and no power of ten."""
    rounded = float(f"{number:.{num_digits}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:g}"


_HEAD = ["figure", "what", "paper", "ours", "ours / paper"]
_ABOUT = """# The paper's numbers and ours

Written by `make paper` (see `benchmarks/paper`). The engine, its scheduler, block pool and decoders are real; time
is that of a cost model, and lengths are log-normal draws with the paper's means. ± is the deviation over the seeds. Why
numbers differ is told in `docs/log.md`, "Paper".

"""


def write_report(folder: Path, rows: Iterable[Row]) -> None:
    """Write the table, and below it the figures in ``folder/paper``, as the Markdown file ``folder/paper.md``."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (_HEAD, ["---"] * len(_HEAD), *(row.cells() for row in rows))]
    figures = [f"![{path.stem}](paper/{path.name})" for path in sorted((folder / "paper").glob("*.png"))]
    text = _ABOUT + "\n".join(lines) + "\n\n" + "\n\n".join(figures)
    (folder / "paper.md").write_text(text.rstrip() + "\n", encoding="utf-8")
