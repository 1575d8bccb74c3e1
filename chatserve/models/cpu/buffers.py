"""`Buffers`: the memory of a step, allocated once and grown when a step is larger than all before."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chatserve.models.batch import Float32Array, Int32Array
from chatserve.models.cpu.architecture import Architecture
from chatserve.models.cpu.attention import MAX_ROWS, scratch_floats
from chatserve.models.cpu.product_stages import ROW_BLOCK
from chatserve.models.cpu.products import BLOCK_GROUP_BYTES, BLOCK_ROWS
from chatserve.models.cpu.step import COUNTER_BYTES, num_stages
from chatserve.models.cpu.tiles import GROUP, TILE_ROWS

_CACHE_LINE = 64
_FIRST_ROWS, _FIRST_WANTED, _FIRST_PIECES = 64, 8, 64
_GATE_UP_FLOATS = 2 * ROW_BLOCK * TILE_ROWS


class Buffers:
    """All that a step writes to besides the pages; `plan` is told where everything lies.

    Attributes:
        logits: float32[wanted rows, vocabulary in whole tiles].
        counters: int64, to be zeroed before each step.
        tiles, pieces: int32[., 5] and int32[., 3], see `step.cut_work`.
        rotation: float32[rows, 2, head_dim / 2], cosines and sines.
    """

    def __init__(self, architecture: Architecture, num_threads: int, plan: NDArray[Any]) -> None:
        self._architecture, self._num_threads, self._plan = architecture, num_threads, plan
        self.counters = _aligned(num_stages(architecture.num_layers) * COUNTER_BYTES // 8, np.int64)
        self._zeros = _aligned(TILE_ROWS, np.float32)
        group_size = architecture.num_heads // architecture.num_kv_heads
        self._tile_rows = max(1, MAX_ROWS // group_size) * group_size
        kv_numbers = 2 * architecture.num_kv_heads * architecture.head_dim
        width = max(padded(architecture.hidden_size), kv_numbers, _GATE_UP_FLOATS)
        self._scratch = _per_thread(
            num_threads, max(width, scratch_floats(self._tile_rows, architecture.head_dim)), np.float32
        )
        self._set(counters=self.counters, zeros=self._zeros)
        self._set_strided(scratch=self._scratch)
        self._grow_rows(_FIRST_ROWS)
        self._grow_wanted(_FIRST_WANTED)
        self._grow_work(_FIRST_PIECES, _FIRST_PIECES)

    def fit(self, num_rows: int, num_wanted: int) -> None:
        if num_rows > len(self.rotation):
            self._grow_rows(num_rows)
        if num_wanted > len(self.logits):
            self._grow_wanted(num_wanted)

    def fit_work(self, num_tiles: int, num_pieces: int) -> bool:
        """Whether the arrays of tiles and pieces were large enough; when not, they are now."""
        if num_tiles <= len(self.tiles) and num_pieces <= len(self.pieces):
            return True
        self._grow_work(num_tiles, num_pieces)
        return False

    def fit_partials(self, num_partials: int) -> None:
        if num_partials > len(self._partials):
            self._grow_partials(num_partials)

    def _grow_rows(self, num_rows: int) -> None:
        shape = self._architecture
        num_rows = 1 << (num_rows - 1).bit_length()
        mixed, inner = shape.num_heads * shape.head_dim, padded(shape.inner_size)
        self.rotation: Float32Array = np.empty((num_rows, 2, shape.head_dim // 2), np.float32)
        self._hidden = _rows(num_rows, padded(shape.hidden_size))
        self._qkv, self._mixed = _rows(num_rows, shape.num_qkv_heads * shape.head_dim), _rows(num_rows, padded(mixed))
        self._inner = _rows(num_rows, inner)
        width = max(padded(shape.hidden_size), padded(mixed), inner)
        num_block_groups = -(-num_rows // BLOCK_ROWS) * width // GROUP
        self._prepared = _per_thread(self._num_threads, num_block_groups * max(BLOCK_GROUP_BYTES.values()), np.uint8)
        self._set_strided(hidden=self._hidden, qkv=self._qkv, mixed=self._mixed, inner=self._inner)
        self._set(prepared=self._prepared)
        self._plan["prepared_bytes"] = self._prepared.strides[0]

    def _grow_wanted(self, num_wanted: int) -> None:
        width = -(-self._architecture.vocab_size // TILE_ROWS) * TILE_ROWS
        self.logits = _rows(1 << (num_wanted - 1).bit_length(), width)
        self._set_strided(logits=self.logits)

    def _grow_work(self, num_tiles: int, num_pieces: int) -> None:
        self.tiles: Int32Array = np.zeros((num_tiles, 5), np.int32)
        self.pieces: Int32Array = np.zeros((num_pieces, 3), np.int32)
        self._grow_partials(1)

    def _grow_partials(self, num_partials: int) -> None:
        self._partials = _rows(num_partials, self._tile_rows * (self._architecture.head_dim + 2))
        self._set(partials=self._partials)
        self._plan["partial_bytes"] = self._partials.strides[0]

    def _set(self, **arrays: NDArray[Any]) -> None:
        for name, array in arrays.items():
            self._plan[name] = array.ctypes.data

    def _set_strided(self, **arrays: NDArray[Any]) -> None:
        self._set(**arrays)
        for name, array in arrays.items():
            self._plan[f"{name}_bytes" if name == "scratch" else f"{name}_stride"] = array.strides[0]


def padded(num_columns: int) -> int:
    """Columns in whole groups."""
    return -(-num_columns // GROUP) * GROUP


def _aligned(count: int, dtype: Any) -> NDArray[Any]:
    """Zeros that start at a cache line."""
    num_bytes = count * np.dtype(dtype).itemsize
    raw = np.zeros(num_bytes + _CACHE_LINE, np.uint8)
    start = -raw.ctypes.data % _CACHE_LINE
    return raw[start : start + num_bytes].view(dtype)


def _rows(num_rows: int, num_columns: int) -> Float32Array:
    return _aligned(num_rows * num_columns, np.float32).reshape(num_rows, num_columns)


def _per_thread(num_threads: int, count: int, dtype: Any) -> NDArray[Any]:
    """[num_threads, at least `count`], no cache line shared."""
    lines = -(-count * np.dtype(dtype).itemsize // _CACHE_LINE)
    return _aligned(num_threads * lines * _CACHE_LINE // np.dtype(dtype).itemsize, dtype).reshape(num_threads, -1)
