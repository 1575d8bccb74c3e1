"""`CpuPages`: the KV pages in main memory, their copies and swaps, and attention by the kernels of `paged_attention`.

Pages are float32 whatever the type of the weights, so that attention is as exact as that of stock transformers.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import config, set_num_threads

from chatserve.models.attention_backend import AttentionRule
from chatserve.models.attention_shape import AttentionShape
from chatserve.models.batch import Batch, Float32Array, Int32Array
from chatserve.models.cpu.pages import Pages
from chatserve.models.paged_attention import ROW_TILE, write_and_attend

_PADDING = 8
"""Keys and values are padded to whole vectors of this many numbers."""


class CpuPages:
    """An `AttentionBackend` for the CPU.

    Within a block of a layer keys are [KV head, padded_dim, slot], values [KV head, slot, padded_dim].
    """

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        self._padded_dim = -(-shape.head_dim // _PADDING) * _PADDING
        self._queries_per_tile = max(1, ROW_TILE // (shape.num_query_heads // shape.num_kv_heads))
        self._num_threads = min(torch.get_num_threads(), config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]

    @property
    def bytes_per_token(self) -> int:
        return 2 * self._shape.num_layers * self._shape.num_kv_heads * self._padded_dim * np.float32().nbytes

    def allocate(self, num_blocks: int, block_size: int, num_host_blocks: int) -> None:
        shape, padded_dim = self._shape, self._padded_dim
        block_numbers = block_size * shape.num_kv_heads * padded_dim
        self._pages = Pages(shape.num_layers, num_blocks, num_host_blocks, block_numbers, np.dtype(np.float32))
        blocks = (num_blocks, shape.num_kv_heads)
        self._keys = [keys.reshape(*blocks, padded_dim, block_size) for keys, _ in self._pages.pool]
        self._values = [values.reshape(*blocks, block_size, padded_dim) for _, values in self._pages.pool]

    def begin(self, batch: Batch) -> None:
        # As many threads as torch, or OpenMP remakes its team; numba keeps the number for each thread.
        set_num_threads(self._num_threads)
        self._pages.move_blocks(batch)
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
