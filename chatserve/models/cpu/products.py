"""Matrix products of weight tiles (see `tiles`) with blocks of rows of activations: the innermost loops.

A kernel multiplies one tile with up to 8 rows at once, so that a decoded weight is used up to 8 times, and adds to what
the output holds or starts from: ``out[row, 0:8] = initial[row, 0:8] + tile @ x[row]``. Whatever the number of rows, a
row goes through the same operations in the same order, so its result has the same bits.

Activations come in one of three forms:

- FLOATS: float32, 32 columns a group, for FLOAT32 weights.
- WIDE: int16 in PAIR_ORDER with, a group, a float32 scale and scale * (sum of the group). With 4- or 8-bit weights 32
  products of a column pair fit 32 bits, so the sum of a group is exact.
- NARROW: int8 in their own order, scale and sum likewise; for 4-bit weights only. Sums of 8 products of a row fit 16
  bits (8 * 15 * 127 = 15240, and two neighbours 30480), which makes this form twice as fast as WIDE.

BLOCK_ROWS rows make a block, which is interleaved group by group: 32 activations of each row, row after row, then the
scales of the rows, then their sums. So one address and constant offsets reach all that a kernel reads. With rows lying
apart, their addresses do not fit the registers, and the kernels for many rows were 1.4 to 1.7 times slower.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from numba import njit, types

from chatserve.models.cpu import vector_code as code
from chatserve.models.cpu.tiles import GROUP, GROUP_BYTES, PAIR_ORDER, Kind
from chatserve.models.cpu.vector_code import FLOATS, INT8, INT16, INT32, VECTOR_BYTES, number


class Form(IntEnum):
    """How the activations that a matrix is multiplied with are stored."""

    FLOATS = 0
    WIDE = 1
    NARROW = 2


WIDE_LIMIT = 32767
NARROW_LIMIT = 127
BLOCK_ROWS = 8
"""Rows of a block."""
ROWS_AT_ONCE = (8, 4, 2, 1)
"""For so many rows there is a kernel each. More rows share a decoded weight, but their sums must fit the registers;
which number is fastest depends on the processor and is measured (see `tuning`)."""
ROW_BYTES = {Form.FLOATS: 4 * GROUP, Form.WIDE: 2 * GROUP, Form.NARROW: GROUP}
"""Bytes of a row's activations in one group."""
SCALES_OFFSET = {form: BLOCK_ROWS * ROW_BYTES[form] for form in Form}
"""Where in a group of a block its scales start; the sums follow them."""
SUMS_OFFSET = 4 * BLOCK_ROWS
"""Bytes from a row's scale to its sum."""
BLOCK_GROUP_BYTES = {form: SCALES_OFFSET[form] + (0 if form is Form.FLOATS else 2 * SUMS_OFFSET) for form in Form}
"""Bytes of one group of one block."""

_CACHE_LINE, _FETCHED_AHEAD = 64, 2048
"""Weights are fetched into the cache so many bytes ahead: 1.25 times the speed with one row, up to 1.8 with four."""

_FLOAT32, _INT8 = int(Kind.FLOAT32), int(Kind.INT8)
_NARROW = int(Form.NARROW)
_BYTES, _SHORTS = code.vector(INT8, 32), code.vector(INT16, 16)


def _float_group(builder: Any, weights: Any, x: Any, num_rows: int, scales: Any, sums: list[Any]) -> list[Any]:
    for column in range(GROUP):
        weight = code.load(builder, weights, VECTOR_BYTES * column)
        factors = [_scalar(builder, x, 4 * (GROUP * row + column)) for row in range(num_rows)]
        sums = [code.multiply_add(builder, weight, x, total) for x, total in zip(factors, sums, strict=True)]
    return sums


def _int8_group(builder: Any, weights: Any, x: Any, num_rows: int, scales: Any, sums: list[Any]) -> list[Any]:
    dots: list[Any] = [None] * num_rows
    for pair in range(GROUP // 2):
        weight = builder.sext(code.load(builder, weights, 16 * pair, code.vector(INT8, 16)), _SHORTS)
        dots = [_add_pair(builder, weight, x, row, pair, dot) for row, dot in enumerate(dots)]
    scale = code.half_to_float(builder, code.load(builder, weights, 256, code.vector(INT16)))
    results = []
    for row, (dot, total) in enumerate(zip(dots, sums, strict=True)):
        factor = builder.fmul(scale, _scalar(builder, scales, 4 * row))
        results.append(code.multiply_add(builder, builder.sitofp(dot, FLOATS), factor, total))
    return results


def _int4_wide_group(builder: Any, weights: Any, x: Any, num_rows: int, scales: Any, sums: list[Any]) -> list[Any]:
    dots: list[Any] = [None] * num_rows
    for step in range(GROUP // 8):
        four = code.load(builder, weights, 32 * step, _SHORTS)
        for part in range(len(PAIR_ORDER)):
            shifted = builder.lshr(four, code.splat(_SHORTS, 4 * part)) if part else four
            weight = builder.and_(shifted, code.splat(_SHORTS, 15)) if part < 3 else shifted
            dots = [_add_pair(builder, weight, x, row, 4 * step + part, dot) for row, dot in enumerate(dots)]
    return _add_int4(builder, weights, dots, scales, sums)


def _int4_narrow_group(builder: Any, weights: Any, x: Any, num_rows: int, scales: Any, sums: list[Any]) -> list[Any]:
    dots: list[Any] = [None] * num_rows
    for part in range(GROUP // 4):
        both = code.load(builder, weights, 32 * (part // 2), _BYTES)
        is_high = part % 2
        weight = builder.lshr(both, code.splat(_BYTES, 4)) if is_high else builder.and_(both, code.splat(_BYTES, 15))
        for row in range(num_rows):
            four = code.broadcast(builder, code.load(builder, x, ROW_BYTES[Form.NARROW] * row + 4 * part, INT32))
            product = code.byte_pair_products(builder, weight, builder.bitcast(four, _BYTES))
            dots[row] = product if dots[row] is None else builder.add(dots[row], product)
    ones = code.splat(_SHORTS, 1)
    return _add_int4(builder, weights, [code.pair_products(builder, dot, ones) for dot in dots], scales, sums)


def _add_pair(builder: Any, weight: Any, x: Any, row: int, pair: int, dot: Any) -> Any:
    two = code.broadcast(builder, code.load(builder, x, ROW_BYTES[Form.WIDE] * row + 4 * pair, INT32))
    product = code.pair_products(builder, weight, builder.bitcast(two, _SHORTS))
    return product if dot is None else builder.add(dot, product)


def _add_int4(builder: Any, weights: Any, dots: list[Any], scales: Any, sums: list[Any]) -> list[Any]:
    scale, minimum = (
        code.half_to_float(builder, code.load(builder, weights, at, code.vector(INT16))) for at in (128, 144)
    )
    results = []
    for row, (dot, total) in enumerate(zip(dots, sums, strict=True)):
        shifted = code.multiply_add(builder, minimum, _scalar(builder, scales, 4 * row + SUMS_OFFSET), total)
        factor = builder.fmul(scale, _scalar(builder, scales, 4 * row))
        results.append(code.multiply_add(builder, builder.sitofp(dot, FLOATS), factor, shifted))
    return results


def _scalar(builder: Any, address: Any, offset: int) -> Any:
    return code.broadcast(builder, code.load(builder, address, offset, code.FLOAT))


def _make_product(kind: Kind, form: Form, num_rows: int) -> Any:
    """An intrinsic that multiplies one tile with `num_rows` rows of a block.

    `x` and `scales` are the addresses of the first row's activations and scale in the first group.
    """
    add_group = {
        (Kind.FLOAT32, Form.FLOATS): _float_group,
        (Kind.INT8, Form.WIDE): _int8_group,
        (Kind.INT4, Form.WIDE): _int4_wide_group,
        (Kind.INT4, Form.NARROW): _int4_narrow_group,
    }[kind, form]

    @code.intrinsic
    def product(typing, weights, x, scales, initial, initial_stride, out, out_stride, num_groups):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            weights, x, scales, initial, initial_stride, out, out_stride, num_groups = args

            def rows(address: Any, stride: Any) -> list[Any]:
                return [builder.add(address, builder.mul(stride, number(row))) for row in range(num_rows)]

            def step(index: Any, sums: list[Any]) -> list[Any]:
                group_weights = builder.add(weights, builder.mul(index, number(GROUP_BYTES[kind])))
                for line in range(0, GROUP_BYTES[kind], _CACHE_LINE):
                    code.prefetch(builder, group_weights, _FETCHED_AHEAD + line)
                offset = builder.mul(index, number(BLOCK_GROUP_BYTES[form]))
                group_x, group_scales = builder.add(x, offset), builder.add(scales, offset)
                return add_group(builder, group_weights, group_x, num_rows, group_scales, sums)

            sums = [code.load(builder, address) for address in rows(initial, initial_stride)]
            for total, address in zip(code.loop(builder, num_groups, sums, step), rows(out, out_stride), strict=True):
                code.store(builder, total, address)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), generate

    return product


def _make_multiply(kind: Kind, form: Form) -> Any:
    """A function that multiplies one tile with rows, `at_once` of them by one kernel as long as there are so many."""
    eight, four, two, one = (_make_product(kind, form, num_rows) for num_rows in ROWS_AT_ONCE)
    row_bytes, scales_offset, group_bytes = ROW_BYTES[form], SCALES_OFFSET[form], BLOCK_GROUP_BYTES[form]

    @njit(nogil=True)
    def multiply(weights, x, initial, initial_stride, out, out_stride, num_groups, num_rows, at_once):  # type: ignore[no-untyped-def]
        row = 0
        while row < num_rows:
            block, place = x + row // BLOCK_ROWS * num_groups * group_bytes, row % BLOCK_ROWS
            a, s = block + place * row_bytes, block + scales_offset + 4 * place
            i, o, count = initial + row * initial_stride, out + row * out_stride, min(num_rows - row, at_once)
            if count >= 8:
                eight(weights, a, s, i, initial_stride, o, out_stride, num_groups)
                row += 8
            elif count >= 4:
                four(weights, a, s, i, initial_stride, o, out_stride, num_groups)
                row += 4
            elif count >= 2:
                two(weights, a, s, i, initial_stride, o, out_stride, num_groups)
                row += 2
            else:
                one(weights, a, s, i, initial_stride, o, out_stride, num_groups)
                row += 1

    return multiply


_multiply_float = _make_multiply(Kind.FLOAT32, Form.FLOATS)
_multiply_int8 = _make_multiply(Kind.INT8, Form.WIDE)
_multiply_wide = _make_multiply(Kind.INT4, Form.WIDE)
_multiply_narrow = _make_multiply(Kind.INT4, Form.NARROW)


@njit(nogil=True)
def multiply_tile(  # type: ignore[no-untyped-def]
    kind, form, weights, x, initial, initial_stride, out, out_stride, num_groups, num_rows, at_once
):
    """``out[row, 0:8] = initial[row, 0:8] + tile @ x[row]`` for `num_rows` rows from the start of the block at `x`.

    Arguments are addresses, and strides in bytes; further blocks follow the first one. `at_once`, one of ROWS_AT_ONCE,
    changes how long it takes and nothing else.
    """
    if kind == _INT8:
        _multiply_int8(weights, x, initial, initial_stride, out, out_stride, num_groups, num_rows, at_once)
    elif kind == _FLOAT32:
        _multiply_float(weights, x, initial, initial_stride, out, out_stride, num_groups, num_rows, at_once)
    elif form == _NARROW:
        _multiply_narrow(weights, x, initial, initial_stride, out, out_stride, num_groups, num_rows, at_once)
    else:
        _multiply_wide(weights, x, initial, initial_stride, out, out_stride, num_groups, num_rows, at_once)
