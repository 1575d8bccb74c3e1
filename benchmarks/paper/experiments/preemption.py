"""Swapping against recomputation over block sizes (Figure 19)."""

from __future__ import annotations

from pathlib import Path

from benchmarks.paper.cost import CostModel
from benchmarks.paper.laboratory import Laboratory
from benchmarks.paper.plots import plot_curves
from benchmarks.paper.report import Row
from benchmarks.paper.served_model import OPT_13B

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_NUM_TOKENS = 256
_PAPER_SWAP = {1: 120.0, 256: 10.0}  # ms, out and in
_PAPER_RECOMPUTE = 4.5  # ms


def run(laboratory: Laboratory, folder: Path) -> list[Row]:
    """What each costs for one request."""
    swaps = {size: 1e3 * _swap_seconds(size) for size in SIZES}
    recompute = 1e3 * CostModel(OPT_13B, 16).recompute_seconds(_NUM_TOKENS)
    curves = {"swap out and in": list(swaps.items()), "recompute": [(size, recompute) for size in SIZES]}
    plot_curves(
        folder / "figure-19.png",
        {f"{_NUM_TOKENS} tokens": curves},
        x="tokens in a block",
        y="ms",
        limit=None,
        is_log=True,
    )
    rows = [
        Row("19", f"swap {_NUM_TOKENS} tokens out and in, block size {size}: ms", _PAPER_SWAP.get(size), milliseconds)
        for size, milliseconds in swaps.items()
    ]
    return [*rows, Row("19", f"recompute {_NUM_TOKENS} tokens: ms", _PAPER_RECOMPUTE, recompute)]


def _swap_seconds(block_size: int) -> float:
    return 2 * CostModel(OPT_13B, block_size).swap_seconds(-(-_NUM_TOKENS // block_size))
