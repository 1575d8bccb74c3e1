"""Swapping against recomputation over block sizes (Figure 19)."""

from __future__ import annotations

from pathlib import Path

from benchmarks.paper.capacity import Case
from benchmarks.paper.cost import CostModel
from benchmarks.paper.laboratory import Laboratory
from benchmarks.paper.plots import plot_curves
from benchmarks.paper.report import Row
from benchmarks.paper.served_model import OPT_13B
from benchmarks.paper.systems import System
from benchmarks.paper.workloads import SHORT_SHAREGPT
from chatserve.config import Preemption

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_KINDS: tuple[Preemption, ...] = ("swap", "recompute")
_LOAD = 1.05  # times the capacity at 16 tokens a block with recomputation
_NUM_TOKENS = 256
_PAPER_SWAP = {1: 120.0, 256: 10.0}  # ms, out and in
_PAPER_RECOMPUTE = 4.5  # ms


def run(laboratory: Laboratory, folder: Path) -> list[Row]:
    """Figure 19: what each costs for one request, and end to end with the real engine."""
    one, one_rows = _one_request()
    traces, trace_rows = _end_to_end(laboratory)
    panels = {f"ms for {_NUM_TOKENS} tokens": one, "normalised latency, s/token": traces}
    plot_curves(folder / "figure-19.png", panels, x="tokens in a block", y="", limit=None, is_log=True)
    return one_rows + trace_rows


def _one_request() -> tuple[dict[str, list[tuple[float, float]]], list[Row]]:
    swaps = {size: 1e3 * _swap_seconds(size) for size in SIZES}
    recompute = 1e3 * CostModel(OPT_13B, 16).recompute_seconds(_NUM_TOKENS)
    rows = [
        Row("19a", f"swap {_NUM_TOKENS} tokens out and in, block size {size}: ms", _PAPER_SWAP.get(size), milliseconds)
        for size, milliseconds in swaps.items()
    ]
    rows.append(Row("19a", f"recompute {_NUM_TOKENS} tokens: ms", _PAPER_RECOMPUTE, recompute))
    return {"swap out and in": list(swaps.items()), "recompute": [(size, recompute) for size in SIZES]}, rows


def _swap_seconds(block_size: int) -> float:
    return 2 * CostModel(OPT_13B, block_size).swap_seconds(-(-_NUM_TOKENS // block_size))


def _end_to_end(laboratory: Laboratory) -> tuple[dict[str, list[tuple[float, float]]], list[Row]]:
    capacity = laboratory.capacities([Case(System(), "OPT-13B", "ShareGPT")])
    rate = float(f"{_LOAD * next(iter(capacity.values())).mean:.3g}")
    keys = [(kind, size) for kind in _KINDS for size in SIZES]
    systems = [System(block_size=size, preemption=kind) for kind, size in keys]
    points = [Case(system, "OPT-13B", SHORT_SHAREGPT.name).at(rate, 0) for system in systems]
    found = dict(zip(keys, laboratory.measure(points), strict=True))
    rows = [
        Row("19b", f"ShareGPT, {rate:g} requests/s, {kind}, block size {size}: s/token", None, figures["hour latency"])
        for (kind, size), figures in found.items()
    ]
    return {kind: [(size, found[kind, size]["hour latency"]) for size in SIZES] for kind in _KINDS}, rows
