"""Attention of one tile of queries straight from the pages, in float32.

Pages of one layer: keys [block, KV head, head_dim, slot] and values [block, KV head, slot, head_dim]. Keys lie
slot-minor, so that the scores of 16 tokens come out of vector multiply-adds without sums across lanes.

A tile is a few consecutive queries of one sequence. The query heads that share a KV head are its rows (query by query),
so every load of K and V serves all of them. The context is cut into splits of SPLIT tokens, at multiples of SPLIT in
the sequence; a split is walked in panels of PANEL tokens, KEY_TILE at a time, with a running maximum and sum ("Online
normalizer calculation for softmax", Milakov and Gimelshein, 2018), and the splits are merged in their order ("Flash
Decoding", Dao et al., 2023). The cuts depend on positions alone, so a row's bits depend neither on what else is in the
step, nor on the chunk, the tile, the block size, nor on which thread computes which split.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

from chatserve.models.cpu import vector_code as code
from chatserve.models.cpu.memory import floats_at, ints_at
from chatserve.models.cpu.vector_code import FLOAT, LANES, VECTOR_BYTES, number

PANEL = 16
KEY_TILE = 64
SPLIT = 256
MAX_ROWS = 36
"""Most rows of a tile, unless the heads of a single query are more."""

_PANELS = KEY_TILE // PANEL


def scratch_floats(num_rows: int, head_dim: int) -> int:
    """Numbers of scratch memory that a thread needs for tiles of `num_rows` rows."""
    rows_and_panels = num_rows * (2 * head_dim + KEY_TILE + 2) + 2 * KEY_TILE * head_dim
    return rows_and_panels + num_rows * (head_dim + 2)


def _make_panel_product(num_rows: int, num_vectors: int, adds: bool) -> Any:
    """An intrinsic: ``C (+)= A @ B``, A [num_rows, depth], B [depth, 8 num_vectors]; addresses and row strides in
    bytes."""

    @code.intrinsic
    def panel_product(typing, a, a_stride, b, b_stride, c, c_stride, depth):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            a, a_stride, b, b_stride, c, c_stride, depth = args
            a_rows = [builder.add(a, builder.mul(a_stride, number(row))) for row in range(num_rows)]
            c_rows = [builder.add(c, builder.mul(c_stride, number(row))) for row in range(num_rows)]
            cells = [(row, VECTOR_BYTES * vector) for row in range(num_rows) for vector in range(num_vectors)]
            start = [code.load(builder, c_rows[row], at) if adds else code.floats(0.0) for row, at in cells]

            def step(index: Any, sums: list[Any]) -> list[Any]:
                b_row, offset = builder.add(b, builder.mul(index, b_stride)), builder.mul(index, number(4))
                columns = {VECTOR_BYTES * i: code.load(builder, b_row, VECTOR_BYTES * i) for i in range(num_vectors)}
                factors = [code.broadcast(builder, code.load(builder, a_row, offset, FLOAT)) for a_row in a_rows]
                return [
                    code.multiply_add(builder, factors[row], columns[at], total)
                    for (row, at), total in zip(cells, sums, strict=True)
                ]

            for (row, at), total in zip(cells, code.loop(builder, depth, start, step), strict=True):
                code.store(builder, total, c_rows[row], at)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return panel_product


_score_1, _score_2, _score_3, _score_6 = (_make_panel_product(rows, 2, adds=False) for rows in (1, 2, 3, 6))
_mix_1, _mix_2, _mix_3, _mix_6 = (_make_panel_product(rows, 2, adds=True) for rows in (1, 2, 3, 6))
_mix_half = _make_panel_product(1, 1, adds=True)


@code.intrinsic
def _largest(typing, address, num_vectors):  # type: ignore[no-untyped-def]
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, num_vectors = args

        def step(index: Any, state: list[Any]) -> list[Any]:
            values = code.load(builder, address, builder.mul(index, number(VECTOR_BYTES)))
            return [code.largest(builder, values, state[0])]

        (lanes,) = code.loop(builder, num_vectors, [code.floats(float("-inf"))], step)
        return code.fold(builder, lanes, lambda x, y: code.largest(builder, x, y))

    return types.float32(types.int64, types.int64), generate


@code.intrinsic
def _exponentiate(typing, address, num_vectors, largest):  # type: ignore[no-untyped-def]
    """Replace every x by exp(x - largest) and return their sum."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, num_vectors, largest = args
        top = code.broadcast(builder, largest)

        def step(index: Any, state: list[Any]) -> list[Any]:
            offset = builder.mul(index, number(VECTOR_BYTES))
            weight = code.exponential(builder, builder.fsub(code.load(builder, address, offset), top))
            code.store(builder, weight, address, offset)
            return [builder.fadd(state[0], weight)]

        (lanes,) = code.loop(builder, num_vectors, [code.floats(0.0)], step)
        return code.fold(builder, lanes, builder.fadd)

    return types.float32(types.int64, types.int64, types.float32), generate


@njit(nogil=True)
def _score_panel(  # type: ignore[no-untyped-def]
    queries, query_bytes, keys, key_bytes, scores, score_bytes, num_rows, head_dim
):
    """scores[row, 0:16] = queries[row] . the panel's 16 keys."""
    row = 0
    while row < num_rows:
        q, s, left = queries + row * query_bytes, scores + row * score_bytes, num_rows - row
        if left >= 6:
            _score_6(q, query_bytes, keys, key_bytes, s, score_bytes, head_dim)
            row += 6
        elif left >= 3:
            _score_3(q, query_bytes, keys, key_bytes, s, score_bytes, head_dim)
            row += 3
        elif left == 2:
            _score_2(q, query_bytes, keys, key_bytes, s, score_bytes, head_dim)
            row += 2
        else:
            _score_1(q, query_bytes, keys, key_bytes, s, score_bytes, head_dim)
            row += 1


@njit(nogil=True)
def _mix_panel(  # type: ignore[no-untyped-def]
    weights, weight_bytes, values, row_bytes, sums, num_rows, num_tokens
):
    """sums[row] += weights[row, 0:num_tokens] @ the panel's values; 16 columns at a time, a last 8 alone."""
    column = 0
    while column + 64 <= row_bytes:
        row, v = 0, values + column
        while row < num_rows:
            w, o, left = weights + row * weight_bytes, sums + row * row_bytes + column, num_rows - row
            if left >= 6:
                _mix_6(w, weight_bytes, v, row_bytes, o, row_bytes, num_tokens)
                row += 6
            elif left >= 3:
                _mix_3(w, weight_bytes, v, row_bytes, o, row_bytes, num_tokens)
                row += 3
            elif left == 2:
                _mix_2(w, weight_bytes, v, row_bytes, o, row_bytes, num_tokens)
                row += 2
            else:
                _mix_1(w, weight_bytes, v, row_bytes, o, row_bytes, num_tokens)
                row += 1
        column += 64
    if column < row_bytes:
        for row in range(num_rows):
            w, o = weights + row * weight_bytes, sums + row * row_bytes + column
            _mix_half(w, weight_bytes, values + column, row_bytes, o, row_bytes, num_tokens)


@njit(nogil=True)
def _collect_panel(  # type: ignore[no-untyped-def]
    keys, values, block_bytes, block_size, head_dim, table, first_token, num_tokens, panel_keys, panel_values
):
    """Copy a panel from blocks of fewer than PANEL slots: keys to [head_dim, PANEL], values to [PANEL, head_dim]."""
    new_keys, new_values = floats_at(panel_keys, head_dim * PANEL), floats_at(panel_values, PANEL * head_dim)
    for i in range(num_tokens):
        block, slot = table[(first_token + i) // block_size], (first_token + i) % block_size
        old_keys = floats_at(keys + block * block_bytes, head_dim * block_size)
        old_values = floats_at(values + block * block_bytes, head_dim * block_size)
        for d in range(head_dim):
            new_keys[d * PANEL + i] = old_keys[d * block_size + slot]
            new_values[i * head_dim + d] = old_values[slot * head_dim + d]


@njit(nogil=True)
def _hide(scores, first_token, num_scores, first_visible, end_visible):  # type: ignore[no-untyped-def]
    """Set the scores of tokens outside [first_visible, end_visible) to -inf."""
    row = floats_at(scores, num_scores)
    for i in range(num_scores):
        if first_token + i < first_visible or first_token + i >= end_visible:
            row[i] = -np.inf


@njit(nogil=True)
def attend_split(  # type: ignore[no-untyped-def]
    queries,
    num_rows,
    group_size,
    first_position,
    head_dim,
    keys,
    values,
    block_bytes,
    block_size,
    table,
    split,
    window,
    scratch,
    result,
):
    """Attend to the tokens of one split.

    Args:
        queries: address of float32[num_rows, head_dim], scaled; row r has position
            ``first_position + r // group_size``.
        keys, values: addresses of the KV head in block 0 of the layer; blocks lie `block_bytes` apart.
        table: address of int32[W], physical block of each logical block.
        split: number of the split; it holds at least one token that the last query sees.
        window: tokens a query sees, itself included; 0 means all.
        scratch: address of memory for scores and collected panels.
        result: address of float32[num_rows, head_dim + 2]: the sums of values weighted by exp(score - largest), then,
            of all rows, the largest scores, then the sums of weights. A row that sees nothing has largest -inf.
    """
    row_bytes = 4 * head_dim
    scores, panel_keys = scratch, scratch + 4 * KEY_TILE * num_rows
    panel_values = panel_keys + row_bytes * KEY_TILE
    sums, largest = floats_at(result, num_rows * head_dim), floats_at(result + num_rows * row_bytes, num_rows)
    totals = floats_at(result + num_rows * (row_bytes + 4), num_rows)
    sums[:] = 0.0
    largest[:] = -np.inf
    totals[:] = 0.0
    is_collected = block_size < PANEL
    key_bytes = 4 * (PANEL if is_collected else block_size)
    first_token, end_token = split * SPLIT, min((split + 1) * SPLIT, first_position + (num_rows - 1) // group_size + 1)
    if window > 0:
        first_token = max(first_token, (first_position - window + 1) // KEY_TILE * KEY_TILE)
    blocks = ints_at(table, (end_token + block_size - 1) // block_size)
    for start in range(first_token, end_token, KEY_TILE):
        num_tokens = min(KEY_TILE, end_token - start)
        num_panels = (num_tokens + PANEL - 1) // PANEL
        for panel in range(num_panels):
            token = start + panel * PANEL
            if is_collected:
                k, v = panel_keys + panel * PANEL * row_bytes, panel_values + panel * PANEL * row_bytes
                count = min(PANEL, num_tokens - panel * PANEL)
                _collect_panel(keys, values, block_bytes, block_size, head_dim, blocks, token, count, k, v)
            else:
                k = keys + blocks[token // block_size] * block_bytes + 4 * (token % block_size)
            _score_panel(queries, row_bytes, k, key_bytes, scores + 4 * PANEL * panel, 4 * KEY_TILE, num_rows, head_dim)
        num_scores = num_panels * PANEL
        for row in range(num_rows):
            position = first_position + row // group_size
            first_visible = max(0, position - window + 1) if window > 0 else 0
            row_scores = scores + 4 * KEY_TILE * row
            if position + 1 < start + num_scores or first_visible > start:
                _hide(row_scores, start, num_scores, first_visible, position + 1)
            new_largest = max(largest[row], _largest(row_scores, num_scores // LANES))
            if new_largest == -np.inf:
                floats_at(row_scores, num_scores)[:] = 0.0
                continue
            correction = np.float32(math.exp(largest[row] - new_largest))
            largest[row] = new_largest
            totals[row] = totals[row] * correction + _exponentiate(row_scores, num_scores // LANES, new_largest)
            if correction != 1.0:
                for i in range(row * head_dim, (row + 1) * head_dim):
                    sums[i] *= correction
        for panel in range(num_panels):
            token = start + panel * PANEL
            if is_collected:
                v = panel_values + panel * PANEL * row_bytes
            else:
                v = values + blocks[token // block_size] * block_bytes + row_bytes * (token % block_size)
            count = min(PANEL, num_tokens - panel * PANEL)
            _mix_panel(scores + 4 * PANEL * panel, 4 * KEY_TILE, v, row_bytes, result, num_rows, count)


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
