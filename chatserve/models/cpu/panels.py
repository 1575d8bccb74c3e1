"""The vector kernels of attention, over panels of PANEL tokens: scores, softmax weights, mixing of values.

Pages are float32 or float16; arithmetic is float32. With few rows, as in decoding, time goes into waiting for pages,
which lie scattered: these kernels fetch the panel that is wanted next into the cache while they work on this one.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types

from chatserve.models.cpu import vector_code as code
from chatserve.models.cpu.vector_code import FLOAT, INT16, LANES, VECTOR_BYTES, number

PANEL = 16
_CACHE_LINE = 64
_MAX_FETCHING_ROWS = 3
"""Tiles with more rows find most of their pages in the cache."""


def _make_product(num_rows: int, num_vectors: int, item_bytes: int, adds: bool) -> Any:
    """An intrinsic: ``C (+)= A @ B``, A float32[num_rows, depth], B [depth, 8 num_vectors] of `item_bytes` a number.

    Arguments are addresses and row strides in bytes. From `ahead` on, memory is fetched, as much as B takes for a
    depth of PANEL columns at a time.
    """
    fetched_bytes = num_vectors * LANES * item_bytes if num_rows <= _MAX_FETCHING_ROWS else 0

    @code.intrinsic
    def product(typing, a, a_stride, b, b_stride, c, c_stride, depth, ahead):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            a, a_stride, b, b_stride, c, c_stride, depth, ahead = args
            a_rows = [builder.add(a, builder.mul(a_stride, number(row))) for row in range(num_rows)]
            c_rows = [builder.add(c, builder.mul(c_stride, number(row))) for row in range(num_rows)]
            cells = [(row, VECTOR_BYTES * vector) for row in range(num_rows) for vector in range(num_vectors)]
            start = [code.load(builder, c_rows[row], at) if adds else code.floats(0.0) for row, at in cells]

            def step(index: Any, sums: list[Any]) -> list[Any]:
                b_row, offset = builder.add(b, builder.mul(index, b_stride)), builder.mul(index, number(4))
                columns = {VECTOR_BYTES * i: _load_row(builder, b_row, i, item_bytes) for i in range(num_vectors)}
                for line in range(0, fetched_bytes, _CACHE_LINE):
                    code.prefetch(builder, builder.add(ahead, builder.mul(index, number(fetched_bytes))), line)
                factors = [code.broadcast(builder, code.load(builder, a_row, offset, FLOAT)) for a_row in a_rows]
                return [
                    code.multiply_add(builder, factors[row], columns[at], total)
                    for (row, at), total in zip(cells, sums, strict=True)
                ]

            for (row, at), total in zip(cells, code.loop(builder, depth, start, step), strict=True):
                code.store(builder, total, c_rows[row], at)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), generate

    return product


def _load_row(builder: Any, address: Any, index: int, item_bytes: int) -> Any:
    """The `index`-th 8 numbers of a row, as float32."""
    if item_bytes == 4:
        return code.load(builder, address, VECTOR_BYTES * index)
    return code.half_to_float(builder, code.load(builder, address, LANES * item_bytes * index, code.vector(INT16)))


def _make_score_panel(item_bytes: int) -> Any:
    score_6, score_3, score_2, score_1 = (_make_product(rows, 2, item_bytes, adds=False) for rows in (6, 3, 2, 1))

    @njit(nogil=True)
    def score(queries, query_bytes, keys, key_bytes, scores, score_bytes, num_rows, head_dim, ahead):  # type: ignore[no-untyped-def]
        row = 0
        while row < num_rows:
            q, s, left = queries + row * query_bytes, scores + row * score_bytes, num_rows - row
            if left >= 6:
                score_6(q, query_bytes, keys, key_bytes, s, score_bytes, head_dim, ahead)
                row += 6
            elif left >= 3:
                score_3(q, query_bytes, keys, key_bytes, s, score_bytes, head_dim, ahead)
                row += 3
            elif left == 2:
                score_2(q, query_bytes, keys, key_bytes, s, score_bytes, head_dim, ahead)
                row += 2
            else:
                score_1(q, query_bytes, keys, key_bytes, s, score_bytes, head_dim, ahead)
                row += 1

    return score


def _make_mix_panel(item_bytes: int) -> Any:
    """Six rows take 16 columns at a time, fewer rows 32; a last 16 or 8 columns are for kernels of one row."""
    mix_6 = _make_product(6, 2, item_bytes, adds=True)
    mix_3, mix_2, mix_1 = (_make_product(rows, 4, item_bytes, adds=True) for rows in (3, 2, 1))
    mix_half, mix_quarter = (_make_product(1, vectors, item_bytes, adds=True) for vectors in (2, 1))

    @njit(nogil=True)
    def mix_rows(weights, weight_bytes, values, head_dim, sums, num_rows, num_tokens, ahead):  # type: ignore[no-untyped-def]
        """Fewer than 6 rows."""
        value_bytes, column = head_dim * item_bytes, 0
        while column + 32 <= head_dim:
            row, v, fetched = 0, values + column * item_bytes, ahead + PANEL * column * item_bytes
            while row < num_rows:
                w, o, left = weights + row * weight_bytes, sums + 4 * (row * head_dim + column), num_rows - row
                if left >= 3:
                    mix_3(w, weight_bytes, v, value_bytes, o, 4 * head_dim, num_tokens, fetched)
                    row += 3
                elif left == 2:
                    mix_2(w, weight_bytes, v, value_bytes, o, 4 * head_dim, num_tokens, fetched)
                    row += 2
                else:
                    mix_1(w, weight_bytes, v, value_bytes, o, 4 * head_dim, num_tokens, fetched)
                    row += 1
            column += 32
        for row in range(num_rows):
            w, o = weights + row * weight_bytes, sums + 4 * row * head_dim
            last = column
            if last + 16 <= head_dim:
                v = values + last * item_bytes
                mix_half(w, weight_bytes, v, value_bytes, o + 4 * last, 4 * head_dim, num_tokens, ahead)
                last += 16
            if last < head_dim:
                v = values + last * item_bytes
                mix_quarter(w, weight_bytes, v, value_bytes, o + 4 * last, 4 * head_dim, num_tokens, ahead)

    @njit(nogil=True)
    def mix(weights, weight_bytes, values, head_dim, sums, num_rows, num_tokens, ahead):  # type: ignore[no-untyped-def]
        row = 0
        while num_rows - row >= 6 and head_dim % 16 == 0:
            w = weights + row * weight_bytes
            for column in range(0, head_dim, 16):
                v, o = values + column * item_bytes, sums + 4 * (row * head_dim + column)
                mix_6(w, weight_bytes, v, head_dim * item_bytes, o, 4 * head_dim, num_tokens, ahead)
            row += 6
        w, o = weights + row * weight_bytes, sums + 4 * row * head_dim
        mix_rows(w, weight_bytes, values, head_dim, o, num_rows - row, num_tokens, ahead)

    return mix


_score_floats, _score_halves = _make_score_panel(4), _make_score_panel(2)
_mix_floats, _mix_halves = _make_mix_panel(4), _make_mix_panel(2)


@njit(nogil=True)
def score_panel(  # type: ignore[no-untyped-def]
    item_bytes, queries, query_bytes, keys, key_bytes, scores, score_bytes, num_rows, head_dim, ahead
):
    """``scores[row, 0:16] = queries[row] . the panel's 16 keys``; `ahead` is the address of what is wanted next."""
    if item_bytes == 2:
        _score_halves(queries, query_bytes, keys, key_bytes, scores, score_bytes, num_rows, head_dim, ahead)
    else:
        _score_floats(queries, query_bytes, keys, key_bytes, scores, score_bytes, num_rows, head_dim, ahead)


@njit(nogil=True)
def mix_panel(item_bytes, weights, weight_bytes, values, head_dim, sums, num_rows, num_tokens, ahead):  # type: ignore[no-untyped-def]
    """``sums[row] += weights[row, 0:num_tokens] @ the panel's values``; `ahead` as in `score_panel`."""
    if item_bytes == 2:
        _mix_halves(weights, weight_bytes, values, head_dim, sums, num_rows, num_tokens, ahead)
    else:
        _mix_floats(weights, weight_bytes, values, head_dim, sums, num_rows, num_tokens, ahead)


@code.intrinsic
def largest_score(typing, address, num_vectors):  # type: ignore[no-untyped-def]
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, num_vectors = args

        def step(index: Any, state: list[Any]) -> list[Any]:
            values = code.load(builder, address, builder.mul(index, number(VECTOR_BYTES)))
            return [code.largest(builder, values, state[0])]

        (lanes,) = code.loop(builder, num_vectors, [code.floats(float("-inf"))], step)
        return code.fold(builder, lanes, lambda x, y: code.largest(builder, x, y))

    return types.float32(types.int64, types.int64), generate


@code.intrinsic
def exponentiate(typing, address, num_vectors, largest):  # type: ignore[no-untyped-def]
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
