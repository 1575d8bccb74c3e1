"""`python -m benchmarks.paper`: every experiment, or those named; figures and table go to docs/."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from benchmarks.paper.experiments import (
    ablations,
    block_sizes,
    decoding,
    long_contexts,
    mixed,
    preemption,
    prompts,
    reuse,
    sampling,
)
from benchmarks.paper.laboratory import Laboratory
from benchmarks.paper.report import Row, write_report

Experiment: TypeAlias = Callable[[Laboratory, Path], list[Row]]

_DOCS = Path(__file__).parents[2] / "docs"
EXPERIMENTS: dict[str, Experiment] = {
    module.__name__.rpartition(".")[2]: module.run
    for module in (long_contexts, sampling, decoding, prompts, block_sizes, preemption, ablations, mixed, reuse)
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *EXPERIMENTS], help="experiments to run; default: all")
    parser.add_argument("--output", type=Path, default=_DOCS, help="folder of paper.md and of the figures' folder")
    parser.add_argument("--processes", type=int, help="default: one for each core")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each case; default: 3")
    options = parser.parse_args()
    rows: list[Row] = []
    with Laboratory(options.processes, options.seeds) as laboratory:
        for name in options.names or EXPERIMENTS:
            begun = time.monotonic()
            found = EXPERIMENTS[name](laboratory, options.output / "paper")
            rows += found
            print(f"== {name}: {time.monotonic() - begun:.0f} s", flush=True)
            for row in found:
                print("  ".join(row.cells()), flush=True)
    if not options.names:
        write_report(options.output, rows)


if __name__ == "__main__":
    main()
