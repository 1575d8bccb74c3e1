"""Runs kernels in numba's simulator, silently when right.

Usage: ``NUMBA_ENABLE_CUDASIM=1 python -m tests.cuda_kernels.simulate``. A place to set breakpoints in. The simulator is
chosen when numba is imported, hence a process of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from cuda_kernels import blocks, combine, write
from cuda_kernels.element_type import BFLOAT16, FLOAT32

RANDOM = np.random.default_rng(0)


def launch(function: Any, grid: tuple[int, int], num_threads: int, *arguments: Any) -> None:
    cuda.jit(function)[grid, num_threads](*arguments)


def copy_blocks() -> None:
    pages = np.arange(2 * 5 * 3 * 4, dtype=np.uint32)
    expected = pages.reshape(2, 5, 12).copy()
    expected[:, [4, 0]] = expected[:, [1, 3]]
    launch(blocks._copy, (2, 2), blocks.NUM_THREADS, pages, 5, 3, np.array([1, 4, 3, 0], np.int32))
    np.testing.assert_array_equal(pages.reshape(2, 5, 12), expected)


def swap_blocks() -> None:
    pages = np.arange(2 * 5 * 3 * 4, dtype=np.uint32)
    before, staging = pages.reshape(2, 5, 12).copy(), np.zeros(2 * 2 * 12, np.uint32)
    launch(blocks._gather, (2, 2), blocks.NUM_THREADS, pages, 5, 3, np.array([4, 2], np.int32), staging)
    launch(blocks._scatter, (2, 2), blocks.NUM_THREADS, pages, 5, 3, np.array([0, 1], np.int32), staging)
    np.testing.assert_array_equal(pages.reshape(2, 5, 12)[:, [0, 1]], before[:, [4, 2]])


def write_rounded() -> None:
    """Two tokens of one head of 16 numbers into the second block of two slots; the reference cuts and compares."""
    keys = RANDOM.standard_normal((2, 1, 16)).astype(np.float32)
    pages = np.zeros((2, 2 * 2 * 8), np.uint32)
    function = write._write_function(FLOAT32, BFLOAT16, 16)
    words = keys.reshape(-1).view(np.uint32)
    slots = np.array([3, -1], np.int32)
    launch(function, (2, 1), write.NUM_THREADS, words, words, 4, 4, 4, 4, pages[0], pages[1], slots, 1, 1)
    written = (pages[0].view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(4, 16)
    np.testing.assert_allclose(written[3], keys[0, 0], rtol=2**-8)
    assert not written[:3].any()


def combine_splits() -> None:
    """Two splits of equal weight: their mean."""
    partial = RANDOM.standard_normal((1, 1, 2, 32)).astype(np.float32)
    statistics = np.array([[1.0, 1.0], [1.0, 1.0]], np.float32).ravel()
    out = np.zeros(32, np.uint32)
    function = combine._combine_function(FLOAT32, 32)
    launch(function, (1, 1), 32, partial.ravel(), statistics, np.zeros(4, np.int32), out, 2)
    np.testing.assert_allclose(out.view(np.float32), partial.mean(axis=2).ravel(), rtol=1e-6)


if __name__ == "__main__":
    copy_blocks()
    swap_blocks()
    write_rounded()
    combine_splits()
