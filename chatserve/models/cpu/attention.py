"""Attention of one tile of queries straight from the pages, in float32.

Pages of one layer: keys [block, KV head, head_dim, slot] and values [block, KV head, slot, head_dim], float32 or
float16. Keys lie slot-minor, so that the scores of 16 tokens come out of vector multiply-adds without sums over lanes.

A tile is a few consecutive queries of one sequence. The query heads that share a KV head are its rows (query by query),
so every load of K and V serves all of them. The context is cut into splits of SPLIT tokens, at multiples of SPLIT in
the sequence; a split is walked in panels of PANEL tokens, KEY_TILE at a time, with a running maximum and sum ("Online
normalizer calculation for softmax", Milakov and Gimelshein, 2018), and the splits are merged in their order ("Flash
Decoding", Dao et al., 2023). The cuts depend on positions alone, so a row's bits depend neither on what else is in the
step, nor on the chunk, the tile, the block size, nor on which thread computes which split.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from chatserve.models.cpu.memory import floats_at, ints_at, shorts_at
from chatserve.models.cpu.panels import PANEL, exponentiate, largest_score, mix_panel, score_panel
from chatserve.models.cpu.vector_code import LANES

KEY_TILE = 64
SPLIT = 256
MAX_ROWS = 36
"""Most rows of a tile, unless the heads of a single query are more."""


class _Context(NamedTuple):
    """Where the keys and values of a sequence lie: addresses, and counts of bytes, all int64.

    Attributes:
        keys, values: the KV head in block 0 of the layer.
        block_bytes: from a block to the next one.
        block_size: slots of a block.
        table: int32[W], physical block of each logical block.
        head_dim: numbers of a key.
        item_bytes: 4 for float32 pages, 2 for float16.
        panel_keys, panel_values: room for the panels of a key tile when blocks are smaller than a panel.
    """

    keys: Any
    values: Any
    block_bytes: Any
    block_size: Any
    table: Any
    head_dim: Any
    item_bytes: Any
    panel_keys: Any
    panel_values: Any


def scratch_floats(num_rows: int, head_dim: int) -> int:
    """Numbers of scratch memory that a thread needs for tiles of `num_rows` rows."""
    rows_and_panels = num_rows * (2 * head_dim + KEY_TILE + 2) + 2 * KEY_TILE * head_dim
    return rows_and_panels + num_rows * (head_dim + 2)


@njit(nogil=True)
def _block_address(context, base, token):  # type: ignore[no-untyped-def]
    table = ints_at(context.table, token // context.block_size + 1)
    return base + table[token // context.block_size] * context.block_bytes


@njit(nogil=True)
def _keys_of(context, start, panel):  # type: ignore[no-untyped-def]
    """Address of the keys of a panel of the key tile that begins at token `start`."""
    if context.block_size < PANEL:
        return context.panel_keys + panel * PANEL * context.head_dim * context.item_bytes
    token = start + panel * PANEL
    return _block_address(context, context.keys, token) + context.item_bytes * (token % context.block_size)


@njit(nogil=True)
def _values_of(context, start, panel):  # type: ignore[no-untyped-def]
    row_bytes = context.head_dim * context.item_bytes
    if context.block_size < PANEL:
        return context.panel_values + panel * PANEL * row_bytes
    token = start + panel * PANEL
    return _block_address(context, context.values, token) + row_bytes * (token % context.block_size)


@njit(nogil=True)
def _collect_panels(context, start, num_tokens):  # type: ignore[no-untyped-def]
    """Copy the panels of a key tile out of blocks of fewer than PANEL slots."""
    numbers, block_size = context.head_dim * context.block_size, context.block_size
    for i in range(num_tokens):
        slot = (start + i) % block_size
        keys = _block_address(context, context.keys, start + i)
        values = _block_address(context, context.values, start + i)
        new_keys, new_values = _keys_of(context, start, i // PANEL), _values_of(context, start, i // PANEL)
        size = context.head_dim * PANEL
        if context.item_bytes == 2:
            _copy_token(shorts_at(keys, numbers), block_size, slot, shorts_at(new_keys, size), PANEL, i % PANEL, 1)
            _copy_token(
                shorts_at(values, numbers), 1, slot, shorts_at(new_values, size), 1, i % PANEL, context.head_dim
            )
        else:
            _copy_token(floats_at(keys, numbers), block_size, slot, floats_at(new_keys, size), PANEL, i % PANEL, 1)
            _copy_token(
                floats_at(values, numbers), 1, slot, floats_at(new_values, size), 1, i % PANEL, context.head_dim
            )


@njit(nogil=True)
def _copy_token(old, old_stride, old_slot, new, new_stride, new_slot, slot_numbers):  # type: ignore[no-untyped-def]
    """Copy the key or value in a slot; its numbers are `.._stride` apart, slots `slot_numbers`."""
    for d in range(len(new) // PANEL):
        new[new_slot * slot_numbers + d * new_stride] = old[old_slot * slot_numbers + d * old_stride]


@njit(nogil=True)
def _hide_and_cap(scores, first_token, num_scores, first_visible, end_visible, softcap):  # type: ignore[no-untyped-def]
    """Set the scores of tokens outside [first_visible, end_visible) to -inf, bend others towards the soft cap."""
    row = floats_at(scores, num_scores)
    for i in range(num_scores):
        if first_token + i < first_visible or first_token + i >= end_visible:
            row[i] = -np.inf
        elif softcap > 0.0:
            row[i] = softcap * math.tanh(row[i] / softcap)


@njit(nogil=True)
def _weigh(scores, num_scores, largest, total, sums):  # type: ignore[no-untyped-def]
    """Turn a row's scores into weights and bring its `sums` up to date; returns its largest score and total weight."""
    new_largest = max(largest, largest_score(scores, num_scores // LANES))
    if new_largest == -np.inf:
        floats_at(scores, num_scores)[:] = 0.0
        return largest, total
    correction = np.float32(math.exp(largest - new_largest))
    if correction != 1.0:
        for i in range(len(sums)):
            sums[i] *= correction
    return new_largest, total * correction + exponentiate(scores, num_scores // LANES, new_largest)


@njit(nogil=True)
def _score_tile(context, queries, num_rows, start, num_tokens, scores):  # type: ignore[no-untyped-def]
    slots = PANEL if context.block_size < PANEL else context.block_size
    for panel in range((num_tokens + PANEL - 1) // PANEL):
        score_panel(
            context.item_bytes, queries, 4 * context.head_dim, _keys_of(context, start, panel),
            context.item_bytes * slots, scores + 4 * PANEL * panel, 4 * KEY_TILE, num_rows, context.head_dim,
            _values_of(context, start, panel),
        )  # fmt: skip


@njit(nogil=True)
def _mix_tile(context, scores, num_rows, start, num_tokens, end_token, sums):  # type: ignore[no-untyped-def]
    num_panels = (num_tokens + PANEL - 1) // PANEL
    for panel in range(num_panels):
        values = _values_of(context, start, panel)
        is_followed = context.block_size >= PANEL and start + KEY_TILE + panel * PANEL < end_token
        mix_panel(
            context.item_bytes, scores + 4 * PANEL * panel, 4 * KEY_TILE, values, context.head_dim,
            sums, num_rows, min(PANEL, num_tokens - panel * PANEL),
            _keys_of(context, start + KEY_TILE, panel) if is_followed else values,
        )  # fmt: skip


@njit(nogil=True)
def attend_split(  # type: ignore[no-untyped-def]
    queries, num_rows, group_size, first_position, head_dim, item_bytes, keys, values, block_bytes, block_size, table,
    split, window, softcap, scratch, result,
):  # fmt: skip
    """Attend to the tokens of one split.

    Args:
        queries: address of float32[num_rows, head_dim], scaled; row r has position
            ``first_position + r // group_size``.
        head_dim, item_bytes, keys, values, block_bytes, block_size, table: see `_Context`.
        split: number of the split; it holds at least one token that the last query sees.
        window: tokens a query sees, itself included; 0 means all.
        softcap: a float; scores s become ``softcap * tanh(s / softcap)`` unless it is 0.
        scratch: address of memory for scores and collected panels.
        result: address of float32[num_rows, head_dim + 2]: the sums of values weighted by exp(score - largest), then,
            of all rows, the largest scores, then the sums of weights. A row that sees nothing has largest -inf.
    """
    scores, panels = scratch, scratch + 4 * KEY_TILE * num_rows
    context = _Context(
        keys, values, block_bytes, block_size, table, head_dim, item_bytes, panels, panels + 4 * KEY_TILE * head_dim
    )
    end = num_rows * head_dim
    results = floats_at(result, end + 2 * num_rows)
    results[:] = 0.0
    results[end : end + num_rows] = -np.inf
    first_token, end_token = split * SPLIT, min((split + 1) * SPLIT, first_position + (num_rows - 1) // group_size + 1)
    if window > 0:
        first_token = max(first_token, (first_position - window + 1) // KEY_TILE * KEY_TILE)
    for start in range(first_token, end_token, KEY_TILE):
        num_tokens = min(KEY_TILE, end_token - start)
        num_scores = (num_tokens + PANEL - 1) // PANEL * PANEL
        if block_size < PANEL:
            _collect_panels(context, start, num_tokens)
        _score_tile(context, queries, num_rows, start, num_tokens, scores)
        for row in range(num_rows):
            position, row_scores = first_position + row // group_size, scores + 4 * KEY_TILE * row
            first_visible = max(0, position - window + 1) if window > 0 else 0
            if softcap > 0.0 or position + 1 < start + num_scores or first_visible > start:
                _hide_and_cap(row_scores, start, num_scores, first_visible, position + 1, softcap)
            results[end + row], results[end + num_rows + row] = _weigh(
                row_scores, num_scores, results[end + row], results[end + num_rows + row],
                results[row * head_dim : (row + 1) * head_dim],
            )  # fmt: skip
        _mix_tile(context, scores, num_rows, start, num_tokens, end_token, result)


@njit(nogil=True)
def merge_split(result, other, num_rows, head_dim):  # type: ignore[no-untyped-def]
    """Merge what `attend_split` found in a later split, `other`, into `result`."""
    end = num_rows * head_dim
    sums, more = floats_at(result, end + 2 * num_rows), floats_at(other, end + 2 * num_rows)
    for row in range(num_rows):
        largest, new_largest = sums[end + row], max(sums[end + row], more[end + row])
        if new_largest == -np.inf:
            continue
        old, new = np.float32(math.exp(largest - new_largest)), np.float32(math.exp(more[end + row] - new_largest))
        sums[end + row] = new_largest
        sums[end + num_rows + row] = sums[end + num_rows + row] * old + more[end + num_rows + row] * new
        for i in range(row * head_dim, (row + 1) * head_dim):
            sums[i] = sums[i] * old + more[i] * new
