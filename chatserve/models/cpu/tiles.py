"""Weight tiles: how a matrix lies in memory for the kernels, and the same arithmetic in plain numpy.

A tile is 8 output rows of a matrix. It is cut into groups of 32 columns; a group is one contiguous piece, and the
groups of a tile follow each other, so a product streams through memory once. Inside a group the 8 rows are interleaved:
one vector load brings a few columns of all 8 rows, an activation is broadcast against it, and a lane of the sum belongs
to one row. So no sum across lanes is ever needed. Of 8 columns the kernels see the pairs in the order PAIR_ORDER:
taking bits 0-3, 4-7, 8-11 and 12-15 out of 16-bit lanes of 4-bit weights gives just these.

The layout of a group, little endian:

- INT4, 160 bytes: 4 vectors of 32 bytes; byte 4 * row + i of vector j holds column 8j + i (low half) and 8j + 4 + i
  (high half); then a scale d and a minimum m a row, float16. A weight is ``d * q + m`` with q from 0 to 15.
- INT8, 272 bytes: 16 vectors of 16 bytes; bytes 2 * row and 2 * row + 1 of vector j hold pair j; then a scale a row. A
  weight is ``d * q`` with q from -127 to 127 (-128 in some GGUF files).
- FLOAT32, 1024 bytes: 32 columns of 8 rows.

Activations are quantised by row and group, never by tensor: what shares a step must not change a row's result.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from chatserve.models.batch import Float32Array

_Number = TypeVar("_Number", bound=np.generic)

TILE_ROWS = 8
GROUP = 32
PAIR_ORDER = ((0, 2), (4, 6), (1, 3), (5, 7))
"""Pairs of columns within 8, in the order in which the kernels multiply them."""

_COLUMN_ORDER = np.array([8 * i + column for i in range(GROUP // 8) for pair in PAIR_ORDER for column in pair])


class Kind(IntEnum):
    """How the weights of a matrix are stored."""

    FLOAT32 = 0
    INT8 = 1
    INT4 = 2


GROUP_BYTES = {Kind.FLOAT32: 1024, Kind.INT8: 272, Kind.INT4: 160}
"""Bytes of one group of one tile."""


@dataclass(frozen=True, slots=True)
class TiledMatrix:
    """A packed matrix of `num_rows` outputs and `num_columns` inputs; padding rows and columns are zero.

    `data` is uint8[num_tiles, num_groups, GROUP_BYTES[kind]].
    """

    kind: Kind
    num_rows: int
    num_columns: int
    data: NDArray[np.uint8]

    def unpack(self) -> Float32Array:
        """The weights, float32[num_rows, num_columns], as the kernels understand them."""
        tiles, groups = self.data.shape[:2]
        if self.kind is Kind.FLOAT32:
            values = self.data.view(np.float32).reshape(tiles, groups, GROUP, TILE_ROWS).transpose(0, 3, 1, 2)
        elif self.kind is Kind.INT8:
            scales = _row_numbers(self.data[:, :, 256:272])
            values = _restore_int8(self.data[:, :, :256]) * scales[..., None]
        else:
            scales, minima = _row_numbers(self.data[:, :, 128:144]), _row_numbers(self.data[:, :, 144:160])
            values = _restore_int4(self.data[:, :, :128]) * scales[..., None] + minima[..., None]
        return np.ascontiguousarray(
            values.reshape(tiles * TILE_ROWS, groups * GROUP)[: self.num_rows, : self.num_columns]
        )


def tile_float(weights: Float32Array) -> TiledMatrix:
    """Pack float32[N, K] exactly."""
    padded = _pad(weights)
    data = padded.reshape(-1, TILE_ROWS, padded.shape[1] // GROUP, GROUP).transpose(0, 2, 3, 1)
    return _matrix(Kind.FLOAT32, weights.shape, np.ascontiguousarray(data, np.float32).view(np.uint8))


def tile_int8(quants: NDArray[np.int8], scales: NDArray[np.float16]) -> TiledMatrix:
    """Pack int8[N, K] with float16[N, K / 32] scales exactly; K is a multiple of 32."""
    padded, padded_scales = _pad(quants), _pad_rows(scales)
    columns = padded.reshape(-1, TILE_ROWS, scales.shape[1], GROUP)[..., _COLUMN_ORDER]
    pairs = columns.reshape(*columns.shape[:3], GROUP // 2, 2).transpose(0, 2, 3, 1, 4)
    data = [np.ascontiguousarray(pairs).view(np.uint8).reshape(*pairs.shape[:2], 256), _scale_bytes(padded_scales)]
    return _matrix(Kind.INT8, quants.shape, np.concatenate(data, axis=2))


def tile_int4(quants: NDArray[np.uint8], scales: NDArray[np.float16], minima: NDArray[np.float16]) -> TiledMatrix:
    """Pack uint8[N, K] of 0 to 15 with float16[N, K / 32] scales and minima exactly; K is a multiple of 32."""
    steps = _pad(quants).reshape(-1, TILE_ROWS, scales.shape[1], GROUP // 8, 2, 4).transpose(0, 2, 3, 4, 1, 5)
    low, high = steps[:, :, :, 0], steps[:, :, :, 1]
    halves = np.ascontiguousarray(low | (high << 4)).reshape(*steps.shape[:2], 128)
    data = [halves, _scale_bytes(_pad_rows(scales)), _scale_bytes(_pad_rows(minima))]
    return _matrix(Kind.INT4, quants.shape, np.concatenate(data, axis=2))


def quantise_int8(weights: Float32Array) -> TiledMatrix:
    """Round float32[N, K] to 8 bits in groups of 32 columns, each with the float16 scale of its largest weight."""
    padded = _pad(weights)[: len(weights)]
    groups = padded.reshape(len(padded), -1, GROUP)
    scales = (np.abs(groups).max(axis=2) / 127).astype(np.float16)
    divisors = np.where(scales == 0, 1, scales).astype(np.float32)
    quants = np.clip(np.rint(groups / divisors[..., None]), -127, 127).astype(np.int8)
    packed = tile_int8(quants.reshape(padded.shape), scales)
    return TiledMatrix(Kind.INT8, weights.shape[0], weights.shape[1], packed.data)


def quantise_rows(rows: Float32Array, limit: int) -> tuple[NDArray[np.int32], Float32Array]:
    """The kernels' rounding of activations, in numpy: int32[T, K] within -`limit`..`limit`, scales float32[T, K /
    32]."""
    groups = rows.reshape(len(rows), -1, GROUP)
    tops = np.maximum(np.abs(groups).max(axis=2), np.float32(1e-20))
    quants = np.rint(groups * (np.float32(limit) / tops)[..., None]).astype(np.int32)
    return quants.reshape(rows.shape), tops * np.float32(1 / limit)


def _matrix(kind: Kind, shape: tuple[int, ...], data: NDArray[np.uint8]) -> TiledMatrix:
    return TiledMatrix(kind, shape[0], shape[1], np.ascontiguousarray(data.reshape(*data.shape[:2], GROUP_BYTES[kind])))


def _pad(values: NDArray[_Number]) -> NDArray[_Number]:
    rows, columns = -len(values) % TILE_ROWS, -values.shape[1] % GROUP
    return np.pad(values, ((0, rows), (0, columns))) if rows or columns else values


def _pad_rows(values: NDArray[np.float16]) -> NDArray[np.float16]:
    return np.pad(values, ((0, -len(values) % TILE_ROWS), (0, 0)))


def _scale_bytes(numbers: NDArray[np.float16]) -> NDArray[np.uint8]:
    """float16[N, groups] as bytes uint8[tiles, groups, 16]."""
    tiles = numbers.reshape(-1, TILE_ROWS, numbers.shape[1]).transpose(0, 2, 1)
    return np.ascontiguousarray(tiles).view(np.uint8).reshape(*tiles.shape[:2], 2 * TILE_ROWS)


def _row_numbers(raw: NDArray[np.uint8]) -> Float32Array:
    """The inverse of `_scale_bytes`: float32[tiles, 8, groups]."""
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32).transpose(0, 2, 1)


def _restore_int8(raw: NDArray[np.uint8]) -> Float32Array:
    pairs = np.ascontiguousarray(raw).view(np.int8).reshape(*raw.shape[:2], GROUP // 2, TILE_ROWS, 2)
    columns = pairs.transpose(0, 3, 1, 2, 4).reshape(raw.shape[0], TILE_ROWS, raw.shape[1], GROUP)
    values = np.empty(columns.shape, np.float32)
    values[..., _COLUMN_ORDER] = columns
    return values


def _restore_int4(raw: NDArray[np.uint8]) -> Float32Array:
    steps = raw.reshape(*raw.shape[:2], GROUP // 8, TILE_ROWS, 4)
    both = np.stack([steps & 15, steps >> 4], axis=3)  # tiles, groups, 8 columns, half, rows, 4
    return both.transpose(0, 4, 1, 2, 3, 5).reshape(raw.shape[0], TILE_ROWS, raw.shape[1], GROUP).astype(np.float32)
