"""Read one row of a tiled matrix: the embedding of a token."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from chatserve.models.cpu import vector_code as code
from chatserve.models.cpu.memory import bytes_at, floats_at
from chatserve.models.cpu.tiles import GROUP, GROUP_BYTES, PAIR_ORDER, TILE_ROWS, Kind
from chatserve.models.cpu.vector_code import INT16

_FLOAT32, _INT8 = int(Kind.FLOAT32), int(Kind.INT8)
_FLOAT32_BYTES, _INT8_BYTES, _INT4_BYTES = (GROUP_BYTES[kind] for kind in (Kind.FLOAT32, Kind.INT8, Kind.INT4))
_COLUMN_ORDER = np.array([8 * i + column for i in range(GROUP // 8) for pair in PAIR_ORDER for column in pair])


@code.intrinsic
def _half_at(typing, address):  # type: ignore[no-untyped-def]
    """The float16 at `address` as float32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        halves = code.broadcast(builder, code.load(builder, args[0], 0, INT16))
        return code.first_lane(builder, code.half_to_float(builder, halves))

    return types.float32(types.int64), generate


@njit(nogil=True)
def read_row(kind, weights, row, num_groups, out):  # type: ignore[no-untyped-def]
    """Write row `row` of the matrix whose tiles start at address `weights` to the float32 numbers at address `out`."""
    tile, lane = row // TILE_ROWS, row % TILE_ROWS
    values = floats_at(out, num_groups * GROUP)
    for group in range(num_groups):
        start = group * GROUP
        if kind == _FLOAT32:
            numbers = floats_at(weights + (tile * num_groups + group) * _FLOAT32_BYTES, GROUP * TILE_ROWS)
            for column in range(GROUP):
                values[start + column] = numbers[column * TILE_ROWS + lane]
        elif kind == _INT8:
            address = weights + (tile * num_groups + group) * _INT8_BYTES
            quants = bytes_at(address, GROUP * TILE_ROWS)
            scale = _half_at(address + 256 + 2 * lane)
            for i in range(GROUP):
                values[start + _COLUMN_ORDER[i]] = scale * np.float32(quants[16 * (i // 2) + 2 * lane + i % 2])
        else:
            address = weights + (tile * num_groups + group) * _INT4_BYTES
            halves = bytes_at(address, GROUP // 2 * TILE_ROWS)
            scale, minimum = _half_at(address + 128 + 2 * lane), _half_at(address + 144 + 2 * lane)
            for column in range(GROUP):
                both = halves[32 * (column // 8) + 4 * lane + column % 4]
                quant = (both >> 4) & 15 if column % 8 >= 4 else both & 15
                values[start + column] = scale * np.float32(quant) + minimum
