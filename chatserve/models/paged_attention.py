"""CPU kernels over the pages: write new K and V, attend through block tables. All arithmetic is float32.

Pages of a layer: keys [num_blocks, KV heads, head_dim, block_size], values [num_blocks, KV heads, block_size,
padded_dim]. Keys lie token-minor, so that the scores of 16 tokens come out of vector multiply-adds without sums
across lanes.

A work item is a KV head of a tile of queries of one chunk; the query heads that share the KV head are rows of the
tile, so every load of K and V serves all of them. The context is walked in panels of 16 tokens, KEY_TILE tokens at a
time, with the running maximum and sum of "Online normalizer calculation for softmax" (Milakov and Gimelshein, 2018).
Tiles start at multiples of KEY_TILE in the sequence and every row adds its terms in the order of the tokens, so a
row's result does not depend on the batch, the chunk, the tile of queries or the block size.

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
_EXP_COEFFICIENTS = (1.98756915e-4, 1.39819995e-3, 8.33345191e-3, 4.16657959e-2, 0.166666655, 0.500000012)
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


def _make_multiply(num_rows: int, num_vectors: int) -> Any:
    """An intrinsic for ``C += A @ B``, A [num_rows, depth], B [depth, 8 num_vectors]; addresses, strides in bytes."""

    @intrinsic
    def multiply(typing: Any, a: Any, a_stride: Any, b: Any, b_stride: Any, c: Any, c_stride: Any, depth: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            a, a_stride, b, b_stride, c, c_stride, depth = args
            a_rows = [builder.add(a, builder.mul(a_stride, ir.Constant(_INT64, row))) for row in range(num_rows)]
            c_rows = [builder.add(c, builder.mul(c_stride, ir.Constant(_INT64, row))) for row in range(num_rows)]
            cells = [(row, vector) for row in range(num_rows) for vector in range(num_vectors)]
            initial = [_load(builder, c_rows[row], _VECTOR_BYTES * vector) for row, vector in cells]

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


_multiply_1, _multiply_2, _multiply_3, _multiply_4, _multiply_6 = (_make_multiply(rows, 2) for rows in (1, 2, 3, 4, 6))
_multiply_narrow = _make_multiply(1, 1)


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
            result = _call(
                builder, "llvm.maxnum.f32", result, builder.extract_element(lanes, ir.Constant(_INT32, lane))
            )
        return result

    return types.float32(types.int64, types.int64), generate


def _exponential(builder: Any, x: Any) -> Any:
    """exp(x) of a vector for x <= 0, to 1e-7; exactly 0 below -87, so that a hidden token adds nothing; NaN of NaN."""
    is_visible = builder.fcmp_ordered(">=", x, _splat(-87.0))
    clamped = _call(builder, "llvm.maxnum.v8f32", x, _splat(-87.0))
    power = _call(builder, "llvm.nearbyint.v8f32", builder.fmul(clamped, _splat(math.log2(math.e))))
    rest = _multiply_add(builder, power, _splat(-0.693359375), clamped)
    rest = _multiply_add(builder, power, _splat(2.12194440e-4), rest)
    polynomial = _splat(_EXP_COEFFICIENTS[0])
    for coefficient in _EXP_COEFFICIENTS[1:]:
        polynomial = _multiply_add(builder, polynomial, rest, _splat(coefficient))
    small = builder.fadd(_multiply_add(builder, polynomial, builder.fmul(rest, rest), rest), _splat(1.0))
    exponent = builder.shl(builder.fptosi(power, _INT_VECTOR), _int_splat(23))
    scaled = builder.bitcast(builder.add(builder.bitcast(small, _INT_VECTOR), exponent), _VECTOR)
    is_nan = builder.fcmp_unordered("uno", x, x)
    return builder.select(is_visible, scaled, builder.select(is_nan, x, _splat(0.0)))


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


@njit(cache=True, nogil=True, error_model="numpy")
def _multiply_panel(a, a_bytes, b, b_bytes, c, c_bytes, num_rows, depth):  # type: ignore[no-untyped-def]
    """``C[:, 0:16] += A[:, 0:depth] @ B[:, 0:16]`` for all rows, as many at once as vector registers can hold."""
    row = 0
    while num_rows - row >= 6:
        _multiply_6(a + row * a_bytes, a_bytes, b, b_bytes, c + row * c_bytes, c_bytes, depth)
        row += 6
    a, c, left = a + row * a_bytes, c + row * c_bytes, num_rows - row
    if left >= 4:
        _multiply_4(a, a_bytes, b, b_bytes, c, c_bytes, depth)
        a, c, left = a + 4 * a_bytes, c + 4 * c_bytes, left - 4
    if left == 3:
        _multiply_3(a, a_bytes, b, b_bytes, c, c_bytes, depth)
    elif left == 2:
        _multiply_2(a, a_bytes, b, b_bytes, c, c_bytes, depth)
    elif left == 1:
        _multiply_1(a, a_bytes, b, b_bytes, c, c_bytes, depth)


@njit(cache=True, nogil=True, error_model="numpy")
def _mix_panel(weights, weight_bytes, panel, sums, row_bytes, num_rows, num_tokens):  # type: ignore[no-untyped-def]
    """Add a panel's values, mixed by the weights of each row, to its sums; a last 8 columns go alone."""
    column = 0
    while row_bytes - column >= 4 * PANEL:
        values, mixed = panel + column, sums + column
        _multiply_panel(weights, weight_bytes, values, row_bytes, mixed, row_bytes, num_rows, num_tokens)
        column += 4 * PANEL
    if column < row_bytes:
        for row in range(num_rows):
            row_weights, mixed = weights + row * weight_bytes, sums + row * row_bytes + column
            _multiply_narrow(row_weights, weight_bytes, panel + column, row_bytes, mixed, row_bytes, num_tokens)


@njit(cache=True, nogil=True, error_model="numpy")
def _hide_and_cap(scores, first_token, num_scores, first_visible, end_visible, softcap):  # type: ignore[no-untyped-def]
    """Apply the soft cap to a row of scores and set those of tokens outside [first_visible, end_visible) to -inf."""
    for i in range(num_scores):
        token = first_token + i
        if token < first_visible or token >= end_visible:
            scores[i] = -np.inf
        elif softcap > 0.0:
            scores[i] = softcap * math.tanh(scores[i] / softcap)


@njit(cache=True, nogil=True, error_model="numpy")
def _pack_panel(keys, values, table, head, first_token, num_tokens, packed_keys, packed_values):  # type: ignore[no-untyped-def]
    """Collect a panel from blocks of fewer than 16 tokens."""
    block_size, head_dim = keys.shape[3], keys.shape[2]
    for i in range(num_tokens):
        block, offset = table[(first_token + i) // block_size], (first_token + i) % block_size
        for d in range(head_dim):
            packed_keys[d, i] = keys[block, head, d, offset]
        for d in range(values.shape[3]):
            packed_values[i, d] = values[block, head, offset, d]


@njit(cache=True, nogil=True, error_model="numpy")
def _locate_panels(keys, values, table, head, first_token, end_token, packed_keys, packed_values, addresses):  # type: ignore[no-untyped-def]
    """Addresses of the keys and values of a tile's panels: in the pages, or packed when blocks are too small."""
    block_size = keys.shape[3]
    for panel in range((end_token - first_token + PANEL - 1) // PANEL):
        token = first_token + panel * PANEL
        if block_size < PANEL:
            num_tokens = min(PANEL, end_token - token)
            _pack_panel(keys, values, table, head, token, num_tokens, packed_keys[panel], packed_values[panel])
            addresses[panel, 0] = packed_keys.ctypes.data + panel * packed_keys.strides[0]
            addresses[panel, 1] = packed_values.ctypes.data + panel * packed_values.strides[0]
        else:
            block, offset = table[token // block_size], token % block_size
            addresses[panel, 0] = keys.ctypes.data + block * keys.strides[0] + head * keys.strides[1] + 4 * offset
            values_address = values.ctypes.data + block * values.strides[0] + head * values.strides[1]
            addresses[panel, 1] = values_address + offset * values.strides[2]


@njit(cache=True, nogil=True, error_model="numpy")
def _weigh_scores(scores, num_scores, sums, largest, total):  # type: ignore[no-untyped-def]
    """Turn a row of scores into weights, rescaling what the row has summed so far; returns its maximum and total."""
    address, num_vectors = scores.ctypes.data, num_scores // _LANES
    new_largest = max(largest, _largest(address, num_vectors))  # type: ignore[call-arg]
    if new_largest == -np.inf:  # nothing is visible yet
        scores[:num_scores] = 0.0
        return new_largest, total
    correction = np.float32(math.exp(largest - new_largest))
    for d in range(len(sums)):
        sums[d] *= correction
    return new_largest, total * correction + _exponentiate(address, num_vectors, new_largest)


@njit(cache=True, nogil=True, error_model="numpy")
def _scale_queries(query, scaling, rows):  # type: ignore[no-untyped-def]
    """rows[query * heads + head] = query[query, head] * scaling."""
    for i in range(query.shape[0]):
        for head in range(query.shape[1]):
            for d in range(query.shape[2]):
                rows[i * query.shape[1] + head, d] = query[i, head, d] * scaling


@njit(cache=True, nogil=True, error_model="numpy")
def _store_means(sums, totals, out):  # type: ignore[no-untyped-def]
    """out[query, head] = sums / totals of row query * heads + head, without the padding."""
    for i in range(out.shape[0]):
        for head in range(out.shape[1]):
            row = i * out.shape[1] + head
            for d in range(out.shape[2]):
                out[i, head, d] = sums[row, d] / totals[row]


@njit(cache=True, nogil=True, error_model="numpy")
def _attend_tile(query, out, keys, values, table, head, first_row, end_row, first_position, scaling, window, softcap):  # type: ignore[no-untyped-def]
    """One KV head of the queries `first_row` to `end_row` of the step, which are consecutive tokens of one sequence."""
    group_size, head_dim, padded_dim = query.shape[1] // keys.shape[1], query.shape[2], values.shape[3]
    num_queries = end_row - first_row
    num_rows = num_queries * group_size
    key_bytes = 4 * max(PANEL, keys.shape[3])
    num_packed = KEY_TILE // PANEL if keys.shape[3] < PANEL else 0
    packed_keys = np.zeros((num_packed, head_dim, PANEL), np.float32)
    packed_values = np.zeros((num_packed, PANEL, padded_dim), np.float32)
    addresses = np.empty((KEY_TILE // PANEL, 2), np.int64)
    queries = np.empty((num_rows, head_dim), np.float32)
    scores = np.empty((num_rows, KEY_TILE), np.float32)
    sums = np.zeros((num_rows, padded_dim), np.float32)
    largest = np.full(num_rows, -np.inf, np.float32)
    totals = np.zeros(num_rows, np.float32)
    first_head = head * group_size
    _scale_queries(query[first_row:end_row, first_head : first_head + group_size], scaling, queries)

    end_token = first_position + num_queries
    oldest = max(0, first_position - window + 1) if window > 0 else 0
    for tile_start in range(oldest // KEY_TILE * KEY_TILE, end_token, KEY_TILE):
        tile_end = min(tile_start + KEY_TILE, end_token)
        num_panels = (tile_end - tile_start + PANEL - 1) // PANEL
        num_scores = num_panels * PANEL
        _locate_panels(keys, values, table, head, tile_start, tile_end, packed_keys, packed_values, addresses)
        scores[:] = 0.0
        for panel in range(num_panels):
            panel_scores = scores.ctypes.data + 4 * PANEL * panel
            _multiply_panel(
                queries.ctypes.data, 4 * head_dim, addresses[panel, 0], key_bytes,
                panel_scores, 4 * KEY_TILE, num_rows, head_dim,
            )  # fmt: skip
        for i in range(num_queries):
            position = first_position + i
            first_visible = max(0, position - window + 1) if window > 0 else 0
            is_cut = position + 1 < tile_start + num_scores or first_visible > tile_start
            for row in range(i * group_size, (i + 1) * group_size):
                if is_cut or softcap > 0.0:
                    _hide_and_cap(scores[row], tile_start, num_scores, first_visible, position + 1, softcap)
                largest[row], totals[row] = _weigh_scores(scores[row], num_scores, sums[row], largest[row], totals[row])
        for panel in range(num_panels):
            weights, num_tokens = (
                scores.ctypes.data + 4 * PANEL * panel,
                min(PANEL, tile_end - tile_start - panel * PANEL),
            )
            _mix_panel(
                weights, 4 * KEY_TILE, addresses[panel, 1], sums.ctypes.data, 4 * padded_dim, num_rows, num_tokens
            )
    _store_means(sums, totals, out[first_row:end_row, first_head : first_head + group_size])


_SIGNATURE = (
    "void({inputs}, {inputs}, {inputs}, {inputs}, {pages}, {pages}, {slots}, {lists}, {lists}, f8, i8, f8, i8)".format(
        inputs="f4[:,:,:]", pages="f4[:,:,:,::1]", slots="i4[::1]", lists="i4[:,::1]"
    )
)
"""Fixed, or every mix of strides would be compiled on its own, for many seconds."""


@njit(_SIGNATURE, cache=True, nogil=True, parallel=True, error_model="numpy")
def write_and_attend(  # type: ignore[no-untyped-def]
    query, key, value, out, keys, values, slots, block_tables, tiles, scaling, window, softcap, num_threads
):
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
            chunk, first_row, end_row, position = tiles[item // num_heads]
            _attend_tile(
                query, out, keys, values, block_tables[chunk], item % num_heads,
                first_row, end_row, position, scaling, window, softcap,
            )  # fmt: skip
