"""Blocks that `CudaPages` copies and swaps, without tokens in the step, serve like the originals."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from chatserve.models.attention_backend import AttentionRule
from chatserve.models.attention_shape import AttentionShape
from chatserve.models.batch import Batch
from chatserve.models.cuda_pages import CudaPages
from tests.ptx.launcher import PtxLauncher

RULE = AttentionRule(0.125)


def ints(*numbers: Any) -> Any:
    return np.array(numbers, np.int32)


def moves(**pairs: Any) -> Batch:
    none, no_tables = ints(), np.empty((0, 0), np.int32)
    return Batch(none, none, none, ints(0), none, no_tables, none, **pairs)


def attend_from(pages: CudaPages, block: int, query: torch.Tensor) -> torch.Tensor:
    """Run the fifth token again, its K and V and those before it being in `block`."""
    pages.begin(Batch(ints(0), ints(4), ints(-1), ints(0, 1), ints(5), ints([block]), ints(0)))
    nothing = torch.full((1, 1, 64), torch.nan)
    return pages.attend(0, query, nothing, nothing, RULE)


def test_moved_blocks_serve_like_the_originals() -> None:
    generator = torch.Generator().manual_seed(0)
    pages = CudaPages(AttentionShape(1, 3, 1, 64), torch.device("cpu"), torch.float32, PtxLauncher(), num_processors=2)
    pages.allocate(num_blocks=8, block_size=8, num_host_blocks=3)
    query, (key, value) = torch.randn(5, 3, 64, generator=generator), torch.randn(2, 5, 1, 64, generator=generator)
    positions = np.arange(5, dtype=np.int32)
    pages.begin(Batch(positions, positions, 16 + positions, ints(0, 5), ints(5), ints([2]), ints(4)))
    expected = pages.attend(0, query, key, value, RULE)[4:]
    pages.begin(moves(copies=ints((2, 4))))
    assert torch.equal(attend_from(pages, 4, query[4:]), expected)
    pages.begin(moves(swap_out=ints((2, 1), (4, 0))))
    pages.begin(moves(swap_in=ints((1, 6), (0, 7))))
    assert torch.equal(attend_from(pages, 6, query[4:]), expected)
    assert torch.equal(attend_from(pages, 7, query[4:]), expected)
