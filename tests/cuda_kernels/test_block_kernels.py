"""Copying blocks on the device, and the way to the host and back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cuda_kernels.compiling import block_kernel
from tests.ptx.faults import KernelFault
from tests.ptx.launcher import PtxLauncher

NUM_PLANES, NUM_BLOCKS = 6, 9
CHUNKS = st.sampled_from([1, 100, 128, 300])


def pages_of(num_chunks: int) -> torch.Tensor:
    return torch.arange(NUM_PLANES * NUM_BLOCKS * num_chunks * 4, dtype=torch.int32).view(NUM_PLANES, NUM_BLOCKS, -1)


def ints(numbers: Any) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(NUM_BLOCKS)), st.integers(1, 4), CHUNKS)
def test_copy(order: list[int], num_pairs: int, num_chunks: int) -> None:
    pages = pages_of(num_chunks)
    expected = pages.clone()
    pairs = [(order[i % 2], order[2 + i]) for i in range(num_pairs)]  # two sources, each copied several times
    for source, destination in pairs:
        expected[:, destination] = pages[:, source]
    PtxLauncher().launch(block_kernel("copy"), (num_pairs, NUM_PLANES, 1), pages, NUM_BLOCKS, num_chunks, ints(pairs))
    assert torch.equal(pages, expected)


def test_a_copy_that_depends_on_another_is_found() -> None:
    """All pairs run at once; the interpreter tells when their order would matter."""
    pairs = ints([(0, 1), (1, 2)])
    with pytest.raises(KernelFault, match="another thread of the launch has"):
        PtxLauncher().launch(block_kernel("copy"), (2, NUM_PLANES, 1), pages_of(4), NUM_BLOCKS, 4, pairs)


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(NUM_BLOCKS)), st.permutations(range(NUM_BLOCKS)), st.integers(1, NUM_BLOCKS), CHUNKS)
def test_gather_and_scatter(old: list[int], new: list[int], count: int, num_chunks: int) -> None:
    pages = pages_of(num_chunks)
    staging = torch.full((count, NUM_PLANES, num_chunks * 4), -1, dtype=torch.int32)
    grid = (count, NUM_PLANES, 1)
    launcher = PtxLauncher()
    launcher.launch(block_kernel("gather"), grid, pages, NUM_BLOCKS, num_chunks, ints(old[:count]), staging)
    assert torch.equal(staging, pages[:, old[:count]].swapaxes(0, 1))
    restored = torch.zeros_like(pages)
    launcher.launch(block_kernel("scatter"), grid, restored, NUM_BLOCKS, num_chunks, ints(new[:count]), staging)
    assert torch.equal(restored[:, new[:count]], pages[:, old[:count]])
    assert not restored[:, new[count:]].any()
