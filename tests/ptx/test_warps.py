"""Matrix instructions, against the layouts that NVIDIA's PTX manual draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ptx.arithmetic import pack_half
from tests.ptx.warps import distribute_matrices, multiply_matrices

RANDOM = np.random.default_rng(7)


def halves(matrix: Any, kind: str) -> Any:
    return pack_half(matrix.astype(np.float32), kind).astype(np.uint32)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_a_product(kind: str) -> None:
    """Small integers are exact in both formats. The fragments are filled element by element as the manual says:
    a_i is at row lane / 4 (+ 8 for the second half), column 2 * (lane % 4) + i % 2 (+ 8 from the fourth on)."""
    left, right, sums = (RANDOM.integers(-8, 8, shape) for shape in ((16, 16), (16, 8), (16, 8)))
    a, b = halves(left, kind), halves(right, kind)
    a_words, b_words = np.zeros((4, 1, 32), np.uint32), np.zeros((2, 1, 32), np.uint32)
    c_numbers = np.zeros((4, 1, 32), np.float32)
    for lane in range(32):
        group, place = divmod(lane, 4)
        for i in range(8):
            row, column = group + 8 * (i % 4 >= 2), 2 * place + i % 2 + 8 * (i >= 4)
            a_words[i // 2, 0, lane] |= a[row, column] << np.uint32(16 * (i % 2))
        for i in range(4):
            row = 2 * place + i % 2 + 8 * (i >= 2)
            b_words[i // 2, 0, lane] |= b[row, group] << np.uint32(16 * (i % 2))
            c_numbers[i, 0, lane] = sums[group + 8 * (i >= 2), 2 * place + i % 2]
    out = multiply_matrices(kind, list(a_words), list(b_words), list(c_numbers))
    expected = left @ right + sums
    for lane in range(32):
        group, place = divmod(lane, 4)
        for i in range(4):
            assert out[i][0, lane] == expected[group + 8 * (i >= 2), 2 * place + i % 2]


@pytest.mark.parametrize("is_transposed", [False, True])
def test_loading_matrices(is_transposed: bool) -> None:
    """Lane i receives elements 2 * (i % 4) and the next of row i / 4, of column i / 4 when transposed."""
    matrices = RANDOM.integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16)
    rows = np.ascontiguousarray(matrices).view(np.uint32).reshape(1, 32, 4)
    received = distribute_matrices(rows, is_transposed)
    for matrix, words in zip(matrices, received, strict=True):
        seen = matrix.T if is_transposed else matrix
        for lane in range(32):
            low, high = seen[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2].tolist()
            assert words[0, lane] == low | high << 16
