"""CPU kernels over the pages: write new K and V, attend through block tables. All arithmetic is float32.

Pages of one layer: keys [num_blocks, KV heads, head_dim, block_size], values [num_blocks, KV heads, block_size, padded_dim].
Keys lie token-minor, so that the scores of 16 tokens come out of vector multiply-adds without horizontal sums.

A work item is a KV head of a tile of queries of one chunk; the query heads that share the KV head are rows of the tile, so
every load of K and V serves all of them. The context is walked in panels of 16 tokens, KEY_TILE tokens at a time, with the
running maximum and sum of "Online normalizer calculation for softmax" (Milakov and Gimelshein, 2018). Tiles start at multiples
of KEY_TILE in the sequence and every row adds its terms in the order of the tokens, so a row's result does not depend on the
batch, the chunk, the tile of queries or the block size.

The vector code is LLVM IR (8 float32 lanes, which LLVM maps to what the machine has), and stays in this file with the
functions that use it: numba's cache notices changes of this file only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic

PANEL = 16
KEY_TILE = 64
ROW_TILE = 36
"""Most rows (queries x query heads of a KV head) of a work item, unless one query alone has more."""

_LANES = 8
_INT32, _INT64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_VECTOR, _INT_VECTOR = ir.VectorType(_FLOAT, _LANES), ir.VectorType(_INT32, _LANES)
_VECTOR_BYTES = 4 * _LANES
_EXP_COEFFICIENTS = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
"""exp(f) = 1 + f + f^2 * polynomial(f) for |f| <= ln(2) / 2, highest power first (Cephes, expf.c)."""


def _splat(number: float) -> Any:
    return ir.Constant(_VECTOR, [number] * _LANES)


def _int_splat(number: int) -> Any:
    return ir.Constant(_INT_VECTOR, [number] * _LANES)


def _broadcast(builder: Any, scalar: Any) -> Any:
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    single = builder.insert_element(undefined, scalar, ir.Constant(_INT32, 0))
    return builder.shuffle_vector(single, undefined, _int_splat(0))


def _address(builder: Any, base: Any, offset: Any, kind: Any) -> Any:
    if isinstance(offset, int):
        offset = ir.Constant(_INT64, offset)
    return builder.inttoptr(builder.add(base, offset), kind.as_pointer())


def _load(builder: Any, base: Any, offset: Any, kind: Any = _VECTOR) -> Any:
    loaded = builder.load(_address(builder, base, offset, kind))
    loaded.align = 4
    return loaded


def _store(builder: Any, value: Any, base: Any, offset: Any) -> None:
    builder.store(value, _address(builder, base, offset, value.type)).align = 4


def _call(builder: Any, name: str, *operands: Any) -> Any:
    kind = ir.FunctionType(operands[0].type, [operand.type for operand in operands])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), operands)


def _multiply_add(builder: Any, x: Any, y: Any, z: Any) -> Any:
    return _call(builder, "llvm.fmuladd.v8f32", x, y, z)


def _loop(builder: Any, count: Any, initial: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """``for i in range(count): state = body(i, state)`` with the state in registers; `count` is at least 1."""
    before = builder.block
    inside, after = builder.append_basic_block("inside"), builder.append_basic_block("after")
    builder.branch(inside)
    builder.position_at_end(inside)
    index = builder.phi(_INT64)
    index.add_incoming(ir.Constant(_INT64, 0), before)
    state = [builder.phi(value.type) for value in initial]
    for phi, value in zip(state, initial, strict=True):
        phi.add_incoming(value, before)
    new_state = body(index, state)
    following = builder.add(index, ir.Constant(_INT64, 1))
    index.add_incoming(following, builder.block)
    for phi, value in zip(state, new_state, strict=True):
        phi.add_incoming(value, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, count), inside, after)
    builder.position_at_end(after)
    return new_state


def _make_multiply(num_rows: int, num_vectors: int, adds: bool) -> Any:
    """An intrinsic for ``C (+)= A @ B``, A [num_rows, depth], B [depth, 8 num_vectors]; addresses and row strides in bytes."""

    @intrinsic
    def multiply(typing: Any, a: Any, a_stride: Any, b: Any, b_stride: Any, c: Any, c_stride: Any, depth: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            a, a_stride, b, b_stride, c, c_stride, depth = args
            a_rows = [builder.add(a, builder.mul(a_stride, ir.Constant(_INT64, row))) for row in range(num_rows)]
            c_rows = [builder.add(c, builder.mul(c_stride, ir.Constant(_INT64, row))) for row in range(num_rows)]
            cells = [(row, vector) for row in range(num_rows) for vector in range(num_vectors)]
            initial = [
                _load(builder, c_rows[row], _VECTOR_BYTES * vector) if adds else _splat(0.0) for row, vector in cells
            ]

            def step(index: Any, sums: list[Any]) -> list[Any]:
                b_row = builder.add(b, builder.mul(index, b_stride))
                columns = [_load(builder, b_row, _VECTOR_BYTES * vector) for vector in range(num_vectors)]
                offset = builder.mul(index, ir.Constant(_INT64, 4))
                factors = [_broadcast(builder, _load(builder, a_row, offset, _FLOAT)) for a_row in a_rows]
                return [
                    _multiply_add(builder, factors[row], columns[vector], total)
                    for (row, vector), total in zip(cells, sums, strict=True)
                ]

            for (row, vector), total in zip(cells, _loop(builder, depth, initial, step), strict=True):
                _store(builder, total, c_rows[row], _VECTOR_BYTES * vector)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return multiply


_dot_1, _dot_2, _dot_3, _dot_4, _dot_6 = (_make_multiply(rows, 2, False) for rows in (1, 2, 3, 4, 6))
_mix_1, _mix_2, _mix_3, _mix_4, _mix_6 = (_make_multiply(rows, 2, True) for rows in (1, 2, 3, 4, 6))
_mix_narrow = _make_multiply(1, 1, True)


@intrinsic
def _largest(typing: Any, address: Any, num_vectors: Any) -> Any:
    """Largest of 8 `num_vectors` floats."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, num_vectors = args

        def step(index: Any, state: list[Any]) -> list[Any]:
            offset = builder.mul(index, ir.Constant(_INT64, _VECTOR_BYTES))
            return [_call(builder, "llvm.maxnum.v8f32", state[0], _load(builder, address, offset))]

        (lanes,) = _loop(builder, num_vectors, [_splat(float("-inf"))], step)
        result = builder.extract_element(lanes, ir.Constant(_INT32, 0))
        for lane in range(1, _LANES):
            result = _call(builder, "llvm.maxnum.f32", result, builder.extract_element(lanes, ir.Constant(_INT32, lane)))
        return result

    return types.float32(types.int64, types.int64), generate


def _exponential(builder: Any, x: Any) -> Any:
    """exp(x) of a vector for x <= 0, to 1e-7; exactly 0 below -87, so that a hidden token adds nothing."""
    is_visible = builder.fcmp_ordered(">=", x, _splat(-87.0))
    x = _call(builder, "llvm.maxnum.v8f32", x, _splat(-87.0))
    power = _call(builder, "llvm.nearbyint.v8f32", builder.fmul(x, _splat(math.log2(math.e))))
    rest = _multiply_add(builder, power, _splat(-0.693359375), x)
    rest = _multiply_add(builder, power, _splat(2.12194440e-4), rest)
    polynomial = _splat(_EXP_COEFFICIENTS[0])
    for coefficient in _EXP_COEFFICIENTS[1:]:
        polynomial = _multiply_add(builder, polynomial, rest, _splat(coefficient))
    small = builder.fadd(_multiply_add(builder, polynomial, builder.fmul(rest, rest), rest), _splat(1.0))
    exponent = builder.shl(builder.fptosi(power, _INT_VECTOR), _int_splat(23))
    scaled = builder.bitcast(builder.add(builder.bitcast(small, _INT_VECTOR), exponent), _VECTOR)
    return builder.select(is_visible, scaled, _splat(0.0))


@intrinsic
def _exponentiate(typing: Any, address: Any, num_vectors: Any, largest: Any) -> Any:
    """Replace 8 `num_vectors` floats x by exp(x - largest) and return their sum, lane by lane, then over the lanes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, num_vectors, largest = args
        maximum = _broadcast(builder, largest)

        def step(index: Any, state: list[Any]) -> list[Any]:
            offset = builder.mul(index, ir.Constant(_INT64, _VECTOR_BYTES))
            weight = _exponential(builder, builder.fsub(_load(builder, address, offset), maximum))
            _store(builder, weight, address, offset)
            return [builder.fadd(state[0], weight)]

        (lanes,) = _loop(builder, num_vectors, [_splat(0.0)], step)
        total = builder.extract_element(lanes, ir.Constant(_INT32, 0))
        for lane in range(1, _LANES):
            total = builder.fadd(total, builder.extract_element(lanes, ir.Constant(_INT32, lane)))
        return total

    return types.float32(types.int64, types.int64, types.float32), generate


@njit(cache=True, nogil=True)
def _dot_panel(queries, query_bytes, panel, panel_bytes, scores, score_bytes, num_rows, head_dim):  # type: ignore[no-untyped-def]
    """scores[row, 0:16] = queries[row] . the panel's 16 keys, for all rows."""
    row = 0
    while num_rows - row >= 6:
        _dot_6(queries + row * query_bytes, query_bytes, panel, panel_bytes, scores + row * score_bytes, score_bytes, head_dim)
        row += 6
    q, s, left = queries + row * query_bytes, scores + row * score_bytes, num_rows - row
    if left >= 4:
        _dot_4(q, query_bytes, panel, panel_bytes, s, score_bytes, head_dim)
        q, s, left = q + 4 * query_bytes, s + 4 * score_bytes, left - 4
    if left == 3:
        _dot_3(q, query_bytes, panel, panel_bytes, s, score_bytes, head_dim)
    elif left == 2:
        _dot_2(q, query_bytes, panel, panel_bytes, s, score_bytes, head_dim)
    elif left == 1:
        _dot_1(q, query_bytes, panel, panel_bytes, s, score_bytes, head_dim)


@njit(cache=True, nogil=True)
def _mix_panel(weights, weight_bytes, panel, panel_bytes, sums, sum_bytes, num_rows, num_tokens):  # type: ignore[no-untyped-def]
    """sums[row] += weights[row, 0:num_tokens] @ the panel's values, for all rows; 16 columns at a time, a last 8 alone."""
    column = 0
    while sum_bytes - column >= 64:
        row = 0
        v = panel + column
        while num_rows - row >= 6:
            _mix_6(weights + row * weight_bytes, weight_bytes, v, panel_bytes, sums + row * sum_bytes + column, sum_bytes, num_tokens)
            row += 6
        w, o, left = weights + row * weight_bytes, sums + row * sum_bytes + column, num_rows - row
        if left >= 4:
            _mix_4(w, weight_bytes, v, panel_bytes, o, sum_bytes, num_tokens)
            w, o, left = w + 4 * weight_bytes, o + 4 * sum_bytes, left - 4
        if left == 3:
            _mix_3(w, weight_bytes, v, panel_bytes, o, sum_bytes, num_tokens)
        elif left == 2:
            _mix_2(w, weight_bytes, v, panel_bytes, o, sum_bytes, num_tokens)
        elif left == 1:
            _mix_1(w, weight_bytes, v, panel_bytes, o, sum_bytes, num_tokens)
        column += 64
    if column < sum_bytes:
        for row in range(num_rows):
            _mix_narrow(
                weights + row * weight_bytes, weight_bytes, panel + column, panel_bytes, sums + row * sum_bytes + column, sum_bytes, num_tokens
            )


@njit(cache=True, nogil=True)
def _hide_and_cap(scores, first_token, num_scores, first_visible, end_visible, softcap):  # type: ignore[no-untyped-def]
    """Apply the soft cap to a row of scores and set those of tokens outside [first_visible, end_visible) to -inf."""
    for i in range(num_scores):
        token = first_token + i
        if token < first_visible or token >= end_visible:
            scores[i] = -np.inf
        elif softcap > 0.0:
            scores[i] = softcap * math.tanh(scores[i] / softcap)


@njit(cache=True, nogil=True)
def _pack_panel(keys, values, table, head, first_token, num_tokens, packed_keys, packed_values):  # type: ignore[no-untyped-def]
    """Collect a panel from blocks of fewer than 16 tokens."""
    block_size, head_dim = keys.shape[3], keys.shape[2]
    for i in range(num_tokens):
        block, offset = table[(first_token + i) // block_size], (first_token + i) % block_size
        for d in range(head_dim):
            packed_keys[d, i] = keys[block, head, d, offset]
        for d in range(values.shape[3]):
            packed_values[i, d] = values[block, head, offset, d]


@njit(cache=True, nogil=True)
def _attend_item(query, out, keys, values, table, head, first_row, end_row, first_position, scaling, window, softcap):  # type: ignore[no-untyped-def]
    """One KV head of the queries `first_row` to `end_row` of the step, which are consecutive tokens of one sequence."""
    group_size, head_dim, block_size, padded_dim = query.shape[1] // keys.shape[1], query.shape[2], keys.shape[3], values.shape[3]
    num_queries = end_row - first_row
    num_rows = num_queries * group_size
    queries = np.empty((num_rows, head_dim), np.float32)
    scores = np.empty((num_rows, KEY_TILE), np.float32)
    sums = np.zeros((num_rows, padded_dim), np.float32)
    largest = np.full(num_rows, -np.inf, np.float32)
    totals = np.zeros(num_rows, np.float32)
    is_packed = block_size < PANEL
    packed_keys = np.zeros((KEY_TILE // PANEL, head_dim, PANEL), np.float32) if is_packed else np.empty((0, 0, 0), np.float32)
    packed_values = np.zeros((KEY_TILE // PANEL, PANEL, padded_dim), np.float32) if is_packed else np.empty((0, 0, 0), np.float32)
    panel_addresses = np.empty((KEY_TILE // PANEL, 2), np.int64)
    for i in range(num_queries):
        for member in range(group_size):
            for d in range(head_dim):
                queries[i * group_size + member, d] = query[first_row + i, head * group_size + member, d] * scaling

    end_token = first_position + num_queries
    oldest = max(0, first_position - window + 1) if window > 0 else 0
    key_bytes = 4 * (PANEL if is_packed else block_size)
    keys_address = keys.ctypes.data + head * keys.strides[1]
    values_address = values.ctypes.data + head * values.strides[1]
    for tile_start in range(oldest // KEY_TILE * KEY_TILE, end_token, KEY_TILE):
        num_tokens = min(KEY_TILE, end_token - tile_start)
        num_panels = (num_tokens + PANEL - 1) // PANEL
        for panel in range(num_panels):
            token = tile_start + panel * PANEL
            if is_packed:
                _pack_panel(keys, values, table, head, token, min(PANEL, end_token - token), packed_keys[panel], packed_values[panel])
                panel_addresses[panel, 0] = packed_keys[panel].ctypes.data
                panel_addresses[panel, 1] = packed_values[panel].ctypes.data
            else:
                block, offset = table[token // block_size], token % block_size
                panel_addresses[panel, 0] = keys_address + block * keys.strides[0] + 4 * offset
                panel_addresses[panel, 1] = values_address + block * values.strides[0] + offset * values.strides[2]
            _dot_panel(
                queries.ctypes.data, 4 * head_dim, panel_addresses[panel, 0], key_bytes,
                scores.ctypes.data + 4 * PANEL * panel, 4 * KEY_TILE, num_rows, head_dim,
            )  # fmt: skip
        num_scores = num_panels * PANEL
        for row in range(num_rows):
            position = first_position + row // group_size
            first_visible = max(0, position - window + 1) if window > 0 else 0
            row_scores = scores[row]
            if softcap > 0.0 or position + 1 < tile_start + num_scores or first_visible > tile_start:
                _hide_and_cap(row_scores, tile_start, num_scores, first_visible, position + 1, softcap)
            new_largest = max(largest[row], _largest(row_scores.ctypes.data, num_scores // _LANES))
            if new_largest == -np.inf:
                row_scores[:num_scores] = 0.0
                continue
            correction = np.float32(math.exp(largest[row] - new_largest))
            largest[row] = new_largest
            totals[row] = totals[row] * correction + _exponentiate(row_scores.ctypes.data, num_scores // _LANES, new_largest)
            for d in range(padded_dim):
                sums[row, d] *= correction
        for panel in range(num_panels):
            _mix_panel(
                scores.ctypes.data + 4 * PANEL * panel, 4 * KEY_TILE, panel_addresses[panel, 1], 4 * padded_dim,
                sums.ctypes.data, 4 * padded_dim, num_rows, min(PANEL, num_tokens - panel * PANEL),
            )  # fmt: skip
    for i in range(num_queries):
        for member in range(group_size):
            row = i * group_size + member
            for d in range(head_dim):
                out[first_row + i, head * group_size + member, d] = sums[row, d] / totals[row]


@njit(cache=True, nogil=True, parallel=True)
def write_and_attend(query, key, value, out, keys, values, slots, block_tables, tiles, scaling, window, softcap, num_threads):  # type: ignore[no-untyped-def]
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
    block_size, num_heads, head_dim = keys.shape[3], keys.shape[1], keys.shape[2]
    for i in prange(len(slots)):
        if slots[i] >= 0:
            block, offset = slots[i] // block_size, slots[i] % block_size
            for head in range(num_heads):
                for d in range(head_dim):
                    keys[block, head, d, offset] = key[i, head, d]
                    values[block, head, offset, d] = value[i, head, d]
    num_items = len(tiles) * num_heads
    for thread in prange(num_threads):
        for item in range(thread, num_items, num_threads):
            tile, head = item // num_heads, item % num_heads
            chunk, first_row, end_row, position = tiles[tile, 0], tiles[tile, 1], tiles[tile, 2], tiles[tile, 3]
            _attend_item(query, out, keys, values, block_tables[chunk], head, first_row, end_row, position, scaling, window, softcap)
