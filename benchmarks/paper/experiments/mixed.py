"""Greedy, sampling, parallel and beam requests in one batch, against the same requests one kind after the other."""

from __future__ import annotations

from pathlib import Path

from benchmarks.paper.cost import CostModel
from benchmarks.paper.laboratory import Laboratory
from benchmarks.paper.paged import PagedServer
from benchmarks.paper.points import cached, summary
from benchmarks.paper.report import Row
from benchmarks.paper.served_model import OPT_13B
from benchmarks.paper.workloads import MIXED

_FIGURE = "beside the paper"


def run(laboratory: Laboratory, folder: Path) -> list[Row]:
    """All requests are there from the start; what counts is when the last is done."""
    kinds = [name for name, _ in MIXED.kinds]
    together, *alone = laboratory.map(_measure, [None, *kinds])
    rows = [
        Row(_FIGURE, f"mixed decoders: only {name}: s to the end", None, figures["makespan"])
        for name, figures in zip(kinds, alone, strict=True)
    ]
    in_turn = sum(figures["makespan"] for figures in alone)
    return [
        *rows,
        Row(_FIGURE, "mixed decoders: one kind after the other: s to the end", None, in_turn),
        Row(_FIGURE, "mixed decoders: all in one batch: s to the end", None, together["makespan"]),
    ]


def _measure(kind: str | None) -> dict[str, float]:
    return cached(f"mixed {kind}", lambda: _simulate(kind))


def _simulate(kind: str | None) -> dict[str, float]:
    jobs = [job for job in MIXED.jobs(rate=1000.0, seed=0) if kind in (None, job.decoder)]
    return summary(PagedServer(CostModel(OPT_13B, 16)).serve(jobs), OPT_13B.trace_seconds)
