"""CPU kernels of the transformers runner: write new K and V into the pages, attend through block tables, in float32.

Pages of a layer: keys [num_blocks, KV heads, padded_dim, block_size], values [num_blocks, KV heads, block_size,
padded_dim]; padding is zero and stays so. Attention itself, and why no row's bits depend on the batch, the chunk, the
tile of queries or the block size: see `cpu.attention`.

A work item is a KV head of a tile of queries of one chunk; the query heads that share the KV head are rows of the tile,
so every load of K and V serves all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from chatserve.models.cpu.attention import MAX_ROWS, SPLIT, attend_split, merge_split, scratch_floats
from chatserve.models.cpu.sources import source_digest

ROW_TILE = MAX_ROWS
"""Most rows (queries x query heads of a KV head) of a work item, unless one query alone has more."""

_scratch_floats = njit(nogil=True)(scratch_floats)


@njit(nogil=True)
def _scale_queries(query, scaling, rows):  # type: ignore[no-untyped-def]
    """rows[query * heads + head] = query[query, head] * scaling, and zeros behind it."""
    for i in range(query.shape[0]):
        for head in range(query.shape[1]):
            row = rows[i * query.shape[1] + head]
            row[query.shape[2] :] = 0.0
            for d in range(query.shape[2]):
                row[d] = query[i, head, d] * scaling


@njit(nogil=True, error_model="numpy")
def _store_means(result, padded_dim, out):  # type: ignore[no-untyped-def]
    """out[query, head] = sums / totals of row query * heads + head of what `attend_split` found."""
    num_rows = out.shape[0] * out.shape[1]
    for row in range(num_rows):
        total = result[num_rows * (padded_dim + 1) + row]
        for d in range(out.shape[2]):
            out[row // out.shape[1], row % out.shape[1], d] = result[row * padded_dim + d] / total


@njit(nogil=True)
def _attend_tile(query, out, keys, values, table, head, position, scaling, window, softcap):  # type: ignore[no-untyped-def]
    """One KV head of a tile of queries [., its query heads, .], the first of which has `position`."""
    padded_dim, block_size, num_rows = keys.shape[2], keys.shape[3], query.shape[0] * query.shape[1]
    queries = np.empty((num_rows, padded_dim), np.float32)
    _scale_queries(query, scaling, queries)
    scratch = np.empty(_scratch_floats(num_rows, padded_dim), np.float32)
    results = np.empty((2, num_rows * (padded_dim + 2)), np.float32)
    first_split = max(0, position - window + 1) // SPLIT if window > 0 else 0
    for split in range(first_split, (position + query.shape[0] + SPLIT - 1) // SPLIT):
        result = results[0 if split == first_split else 1]
        attend_split(
            queries.ctypes.data, num_rows, query.shape[1], position, padded_dim, 4,
            keys.ctypes.data + head * keys.strides[1], values.ctypes.data + head * values.strides[1], keys.strides[0],
            block_size, table.ctypes.data, split, window, softcap, scratch.ctypes.data, result.ctypes.data,
        )  # fmt: skip
        if split > first_split:
            merge_split(results[0].ctypes.data, result.ctypes.data, num_rows, padded_dim)
    _store_means(results[0], padded_dim, out)


_SIGNATURE = (
    "void({inputs}, {inputs}, {inputs}, {inputs}, {pages}, {pages}, {slots}, {lists}, {lists}, f8, i8, f8, i8)".format(
        inputs="f4[:,:,:]", pages="f4[:,:,:,::1]", slots="i4[::1]", lists="i4[:,::1]"
    )
)
"""Fixed, or every mix of strides would be compiled on its own, for many seconds."""


def _make_kernel(sources: int) -> Any:
    """The function called from Python; it closes over a digest of what it is compiled from, see `cpu.entry_points`."""

    @njit(_SIGNATURE, cache=True, nogil=True, parallel=True)
    def write_and_attend(  # type: ignore[no-untyped-def]
        query, key, value, out, keys, values, slots, block_tables, tiles, scaling, window, softcap, num_threads
    ):
        block_size, num_heads, num_threads = keys.shape[3], keys.shape[1], num_threads if sources else 1
        for i in prange(len(slots)):
            if slots[i] >= 0:
                block, offset = slots[i] // block_size, slots[i] % block_size
                for head in range(num_heads):
                    for d in range(key.shape[2]):
                        keys[block, head, d, offset] = key[i, head, d]
                        values[block, head, offset, d] = value[i, head, d]
        num_items, group_size = len(tiles) * num_heads, query.shape[1] // num_heads
        for thread in prange(num_threads):
            for item in range(thread, num_items, num_threads):
                (chunk, first_row, end_row, position), head = tiles[item // num_heads], item % num_heads
                first_head = head * group_size
                _attend_tile(
                    query[first_row:end_row, first_head : first_head + group_size],
                    out[first_row:end_row, first_head : first_head + group_size],
                    keys, values, block_tables[chunk], head, position, scaling, window, softcap,
                )  # fmt: skip

    return write_and_attend


write_and_attend = _make_kernel(source_digest())
"""One layer of one step.

Args:
    query, out: float32[T, query heads, head_dim], any strides; `out` is filled.
    key, value: float32[T, KV heads, head_dim], any strides; written into the pages unless the slot is -1.
    keys, values: the layer's pages, see above.
    slots: int32[T], as in `Batch`.
    block_tables: int32[S, W], as in `Batch`.
    tiles: int32[N, 4]: chunk, first row, end row and position of the first row, of every tile of queries.
    scaling, window, softcap: as in `AttentionRule`.
    num_threads: parallel workers; they take the work items in turns.
"""
