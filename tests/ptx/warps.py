"""What the lanes of a warp do together: shuffles, matrix loads and matrix products. Arrays are [warps, 32]."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.ptx.arithmetic import unpack_half

Words = NDArray[np.uint32]
_LANES = np.arange(32)
_GROUP, _PLACE = _LANES // 4, _LANES % 4


def shuffle(mode: str, values: Words, operand: Any, clamp: int = 31) -> tuple[Words, NDArray[np.bool_]]:
    """``shfl.sync`` over whole warps: what each lane receives, and whether its source was in range.

    `operand` is the lane mask, distance or lane, a number or one for each lane.
    """
    distance = np.broadcast_to(np.asarray(operand, np.int64) & 31, values.shape)
    lanes = np.broadcast_to(_LANES, values.shape)
    first = lanes & (clamp >> 8 & 31)
    last = first | (clamp & 31 & ~(clamp >> 8 & 31))
    source = {"bfly": lanes ^ distance, "down": lanes + distance, "up": lanes - distance, "idx": first | distance}[mode]
    in_range = source >= first if mode == "up" else source <= last
    received = np.take_along_axis(values, np.where(in_range, source, lanes), axis=1)
    return received, in_range


def distribute_matrices(rows: Words, is_transposed: bool) -> list[Words]:
    """``ldmatrix``: rows uint32[warps, 32, 4], row i % 8 of matrix i // 8, to one word [warps, 32] for each matrix."""
    halves = rows.view(np.uint16).reshape(len(rows), 4, 8, 8)
    if is_transposed:
        halves = halves.swapaxes(2, 3)
    words = np.ascontiguousarray(halves).view(np.uint32).reshape(len(rows), 4, 32)
    return [words[:, matrix] for matrix in range(4)]


def multiply_matrices(kind: str, left: list[Words], right: list[Words], sums: list[Any]) -> list[NDArray[np.float32]]:
    """``mma.m16n8k16``: left and right in "f16" or "bf16", sums in float32; each a list of the operand's registers."""
    a, b = _left_matrix(kind, left), _right_matrix(kind, right)
    product = a.astype(np.float64) @ b.astype(np.float64)
    rows = [_GROUP, _GROUP, _GROUP + 8, _GROUP + 8]
    columns = [2 * _PLACE, 2 * _PLACE + 1, 2 * _PLACE, 2 * _PLACE + 1]
    return [
        (product[:, row, column] + total).astype(np.float32)
        for row, column, total in zip(rows, columns, sums, strict=True)
    ]


def _left_matrix(kind: str, registers: list[Words]) -> NDArray[np.float32]:
    """[warps, 16, 16]: registers 0 to 3 hold the quarters top left, bottom left, top right, bottom right."""
    top_left, bottom_left, top_right, bottom_right = (_quarter(kind, register) for register in registers)
    left, right = np.concatenate([top_left, bottom_left], 1), np.concatenate([top_right, bottom_right], 1)
    return np.concatenate([left, right], 2)


def _right_matrix(kind: str, registers: list[Words]) -> NDArray[np.float32]:
    """[warps, 16, 8]: each register holds eight rows, transposed."""
    return np.concatenate([_quarter(kind, register) for register in registers], 2).swapaxes(1, 2)


def _quarter(kind: str, register: Words) -> NDArray[np.float32]:
    """[warps, 8, 8]: lane 4 r + c holds columns 2 c and 2 c + 1 of row r."""
    halves = np.ascontiguousarray(register).view(np.uint16).reshape(len(register), 8, 8)
    numbers: NDArray[np.float32] = unpack_half(halves, kind)
    return numbers
