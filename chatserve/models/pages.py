"""`CpuPages`: the KV pages in main memory, their copies and swaps, and attention by the kernels of `paged_attention`.

Pages are float32 whatever the type of the weights: the kernels compute in float32, and converting on every read would
cost more time than half the memory traffic saves.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from numba import config, njit, prange, set_num_threads
from numpy.typing import NDArray

from chatserve.errors import ModelLoadError
from chatserve.models.attention_backend import AttentionRule
from chatserve.models.attention_shape import AttentionShape
from chatserve.models.batch import Batch, Float32Array, Int32Array
from chatserve.models.paged_attention import ROW_TILE, write_and_attend

_PADDING = 8
"""Rows of values are padded to whole vectors of this many numbers."""


class CpuPages:
    """An `AttentionBackend` for the CPU.

    One float32 buffer holds, layer by layer, first the keys [block, KV head, head_dim, slot], then the values
    [block, KV head, slot, padded head_dim]; the host pool for swapping has the same layout.
    """

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        self._padded_dim = -(-shape.head_dim // _PADDING) * _PADDING
        self._queries_per_tile = max(1, ROW_TILE // (shape.num_query_heads // shape.num_kv_heads))
        self._num_threads = min(torch.get_num_threads(), config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]

    @property
    def bytes_per_token(self) -> int:
        numbers = self._shape.head_dim + self._padded_dim
        return self._shape.num_layers * self._shape.num_kv_heads * numbers * np.float32().nbytes

    def allocate(self, num_blocks: int, block_size: int, num_host_blocks: int) -> None:
        self._block_size = block_size
        block_numbers = block_size * self._shape.num_kv_heads
        self._key_numbers, self._value_numbers = block_numbers * self._shape.head_dim, block_numbers * self._padded_dim
        _check_memory((num_blocks + num_host_blocks) * block_size * self.bytes_per_token)
        layer_numbers = self._key_numbers + self._value_numbers
        self._pool = np.zeros((self._shape.num_layers, num_blocks * layer_numbers), np.float32)
        self._host_pool = np.zeros((self._shape.num_layers, num_host_blocks * layer_numbers), np.float32)
        self._keys = [self._layer_keys(layer, num_blocks) for layer in self._pool]
        self._values = [self._layer_values(layer, num_blocks) for layer in self._pool]

    def begin(self, batch: Batch) -> None:
        set_num_threads(
            self._num_threads
        )  # as many as torch, or OpenMP remakes its team; numba keeps it for each thread
        for pairs, source, destination in (
            (batch.swap_out, self._pool, self._host_pool),
            (batch.swap_in, self._host_pool, self._pool),
            (batch.copies, self._pool, self._pool),
        ):
            if len(pairs):
                _move_blocks(source, destination, pairs, self._key_numbers, self._value_numbers)
        self._slots, self._block_tables = np.ascontiguousarray(batch.slots), np.ascontiguousarray(batch.block_tables)
        self._tiles = tile_queries(batch, self._queries_per_tile)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: AttentionRule
    ) -> torch.Tensor:
        queries: Float32Array = query.float().numpy()
        out = np.empty(queries.shape, np.float32)
        write_and_attend(
            queries, key.float().numpy(), value.float().numpy(), out, self._keys[layer], self._values[layer],
            self._slots, self._block_tables, self._tiles, rule.scaling, rule.window, rule.softcap, self._num_threads,
        )  # fmt: skip
        return torch.from_numpy(out).to(query.dtype)

    def _layer_keys(self, layer: Float32Array, num_blocks: int) -> Float32Array:
        shape = (num_blocks, self._shape.num_kv_heads, self._shape.head_dim, self._block_size)
        return layer[: num_blocks * self._key_numbers].reshape(shape)

    def _layer_values(self, layer: Float32Array, num_blocks: int) -> Float32Array:
        shape = (num_blocks, self._shape.num_kv_heads, self._block_size, self._padded_dim)
        return layer[num_blocks * self._key_numbers :].reshape(shape)


def tile_queries(batch: Batch, queries_per_tile: int) -> Int32Array:
    """Cut every chunk into tiles of queries: int32[N, 4] of chunk, first row, end row, position of the first row."""
    tiles: list[tuple[int, int, int, int]] = []
    starts, context_lens = batch.query_starts.tolist(), batch.context_lens.tolist()
    for chunk, context_len in enumerate(context_lens):
        start, end = starts[chunk], starts[chunk + 1]
        first_position = context_len - (end - start)
        tiles.extend(
            (chunk, row, min(row + queries_per_tile, end), first_position + row - start)
            for row in range(start, end, queries_per_tile)
        )
    return np.array(tiles, np.int32).reshape(-1, 4)


def _check_memory(num_bytes: int) -> None:
    """Refuse pages that cannot be there: Linux hands out zeroed memory it does not have and kills the process later."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as file:
            available = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pass
    if num_bytes > available:
        gib = 1 << 30
        raise ModelLoadError(
            f"the KV pages need {num_bytes / gib:.1f} GiB, {available / gib:.1f} GiB of memory are free"
        )


@njit("void(f4[:,::1], f4[:,::1], i4[:,:], i8, i8)", cache=True, nogil=True, parallel=True)
def _move_blocks(
    source: NDArray[np.float32],
    destination: NDArray[np.float32],
    pairs: Int32Array,
    key_numbers: int,
    value_numbers: int,
) -> None:
    """Copy blocks (source, destination) of all layers, in the order of the list: a later pair sees an earlier one."""
    key_offset = source.shape[1] // (key_numbers + value_numbers) * key_numbers
    new_key_offset = destination.shape[1] // (key_numbers + value_numbers) * key_numbers
    for layer in prange(source.shape[0]):
        for i in range(len(pairs)):
            old, new = pairs[i, 0], pairs[i, 1]
            for n in range(key_numbers):
                destination[layer, new * key_numbers + n] = source[layer, old * key_numbers + n]
            old_start, new_start = key_offset + old * value_numbers, new_key_offset + new * value_numbers
            for n in range(value_numbers):
                destination[layer, new_start + n] = source[layer, old_start + n]
