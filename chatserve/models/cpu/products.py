"""Matrix products of weight tiles (see `tiles`) with rows of activations: the innermost loops.

A kernel multiplies one tile with up to 6 rows at once, so that a decoded weight is used up to 6 times, and adds to what
the output holds or starts from: ``out[row, 0:8] = initial[row, 0:8] + tile @ x[row]``. Whatever the number of rows, a
row goes through the same operations in the same order, so its result has the same bits.

Activations come in one of three forms:

- FLOATS: float32, 32 columns a group, for FLOAT32 weights.
- WIDE: int16 in PAIR_ORDER with, a group, a float32 scale and scale * (sum of the group). With 4- or 8-bit weights 32
  products of a column pair fit 32 bits, so the sum of a group is exact.
- NARROW: int8 in their own order, scale and sum likewise; for 4-bit weights only. Sums of 8 products of a row fit 16
  bits (8 * 15 * 127 = 15240, and two neighbours 30480), which makes this form twice as fast as WIDE.
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
FORM_BYTES = {Form.FLOATS: 4, Form.WIDE: 2, Form.NARROW: 1}
"""Bytes of one activation."""
SCALE_BYTES = 8
"""Bytes of a group's scale and sum."""

_FLOAT32, _INT8 = int(Kind.FLOAT32), int(Kind.INT8)
_NARROW = int(Form.NARROW)
_BYTES, _SHORTS = code.vector(INT8, 32), code.vector(INT16, 16)


def _float_group(builder: Any, weights: Any, xs: list[Any], scales: list[Any], sums: list[Any]) -> list[Any]:
    for column in range(GROUP):
        weight = code.load(builder, weights, VECTOR_BYTES * column)
        factors = [code.broadcast(builder, code.load(builder, x, 4 * column, code.FLOAT)) for x in xs]
        sums = [code.multiply_add(builder, weight, x, total) for x, total in zip(factors, sums, strict=True)]
    return sums


def _int8_group(builder: Any, weights: Any, xs: list[Any], scales: list[Any], sums: list[Any]) -> list[Any]:
    dots: list[Any] = [None] * len(xs)
    for pair in range(GROUP // 2):
        weight = builder.sext(code.load(builder, weights, 16 * pair, code.vector(INT8, 16)), _SHORTS)
        dots = [_add_pair(builder, weight, x, pair, dot) for x, dot in zip(xs, dots, strict=True)]
    scale = code.half_to_float(builder, code.load(builder, weights, 256, code.vector(INT16)))
    return [
        code.multiply_add(
            builder, builder.sitofp(dot, FLOATS), builder.fmul(scale, _scalar(builder, x_scale, 0)), total
        )
        for dot, x_scale, total in zip(dots, scales, sums, strict=True)
    ]


def _int4_wide_group(builder: Any, weights: Any, xs: list[Any], scales: list[Any], sums: list[Any]) -> list[Any]:
    dots: list[Any] = [None] * len(xs)
    for step in range(GROUP // 8):
        four = code.load(builder, weights, 32 * step, _SHORTS)
        for part in range(len(PAIR_ORDER)):
            shifted = builder.lshr(four, code.splat(_SHORTS, 4 * part)) if part else four
            weight = builder.and_(shifted, code.splat(_SHORTS, 15)) if part < 3 else shifted
            dots = [_add_pair(builder, weight, x, 4 * step + part, dot) for x, dot in zip(xs, dots, strict=True)]
    return _add_int4(builder, weights, dots, scales, sums)


def _int4_narrow_group(builder: Any, weights: Any, xs: list[Any], scales: list[Any], sums: list[Any]) -> list[Any]:
    dots: list[Any] = [None] * len(xs)
    for part in range(GROUP // 4):
        both = code.load(builder, weights, 32 * (part // 2), _BYTES)
        is_high = part % 2
        weight = builder.lshr(both, code.splat(_BYTES, 4)) if is_high else builder.and_(both, code.splat(_BYTES, 15))
        for row, x in enumerate(xs):
            four = code.broadcast(builder, code.load(builder, x, 4 * part, INT32))
            product = code.byte_pair_products(builder, weight, builder.bitcast(four, _BYTES))
            dots[row] = product if dots[row] is None else builder.add(dots[row], product)
    ones = code.splat(_SHORTS, 1)
    return _add_int4(builder, weights, [code.pair_products(builder, dot, ones) for dot in dots], scales, sums)


def _add_pair(builder: Any, weight: Any, x: Any, pair: int, dot: Any) -> Any:
    two = code.broadcast(builder, code.load(builder, x, 4 * pair, INT32))
    product = code.pair_products(builder, weight, builder.bitcast(two, _SHORTS))
    return product if dot is None else builder.add(dot, product)


def _add_int4(builder: Any, weights: Any, dots: list[Any], scales: list[Any], sums: list[Any]) -> list[Any]:
    scale, minimum = (
        code.half_to_float(builder, code.load(builder, weights, at, code.vector(INT16))) for at in (128, 144)
    )
    results = []
    for dot, x_scale, total in zip(dots, scales, sums, strict=True):
        shifted = code.multiply_add(builder, minimum, _scalar(builder, x_scale, 4), total)
        factor = builder.fmul(scale, _scalar(builder, x_scale, 0))
        results.append(code.multiply_add(builder, builder.sitofp(dot, FLOATS), factor, shifted))
    return results


def _scalar(builder: Any, address: Any, offset: int) -> Any:
    return code.broadcast(builder, code.load(builder, address, offset, code.FLOAT))


def _make_product(kind: Kind, form: Form, num_rows: int) -> Any:
    """An intrinsic that multiplies one tile with `num_rows` rows; all arguments are addresses and strides in bytes."""
    add_group = {
        (Kind.FLOAT32, Form.FLOATS): _float_group,
        (Kind.INT8, Form.WIDE): _int8_group,
        (Kind.INT4, Form.WIDE): _int4_wide_group,
        (Kind.INT4, Form.NARROW): _int4_narrow_group,
    }[kind, form]

    @code.intrinsic
    def product(  # type: ignore[no-untyped-def]
        typing, weights, x, x_stride, scales, scale_stride, initial, initial_stride, out, out_stride, num_groups
    ):
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            weights, x, x_stride, scales, scale_stride, initial, initial_stride, out, out_stride, num_groups = args

            def rows(address: Any, stride: Any) -> list[Any]:
                return [builder.add(address, builder.mul(stride, number(row))) for row in range(num_rows)]

            def step(index: Any, sums: list[Any]) -> list[Any]:
                group_weights = builder.add(weights, builder.mul(index, number(GROUP_BYTES[kind])))
                x_offset = builder.mul(index, number(GROUP * FORM_BYTES[form]))
                scale_offset = builder.mul(index, number(SCALE_BYTES))
                xs = [builder.add(address, x_offset) for address in x_rows]
                x_scales = [builder.add(address, scale_offset) for address in scale_rows]
                return add_group(builder, group_weights, xs, x_scales, sums)

            x_rows, scale_rows = rows(x, x_stride), rows(scales, scale_stride)
            sums = [code.load(builder, address) for address in rows(initial, initial_stride)]
            for total, address in zip(code.loop(builder, num_groups, sums, step), rows(out, out_stride), strict=True):
                code.store(builder, total, address)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 10), generate

    return product


def _make_multiply(kernels: dict[int, Any]) -> Any:
    """A function that takes as many rows at once as one of `kernels`, by number of rows and largest first, can."""
    (largest, first), (middle, second), (_, single) = kernels.items()

    @njit(nogil=True)
    def multiply(  # type: ignore[no-untyped-def]
        weights, x, x_stride, scales, scale_stride, initial, initial_stride, out, out_stride, num_groups, num_rows
    ):
        row = 0
        while row < num_rows:
            a, s = x + row * x_stride, scales + row * scale_stride
            i, o = initial + row * initial_stride, out + row * out_stride
            if num_rows - row >= largest:
                first(weights, a, x_stride, s, scale_stride, i, initial_stride, o, out_stride, num_groups)
                row += largest
            elif num_rows - row >= middle:
                second(weights, a, x_stride, s, scale_stride, i, initial_stride, o, out_stride, num_groups)
                row += middle
            else:
                single(weights, a, x_stride, s, scale_stride, i, initial_stride, o, out_stride, num_groups)
                row += 1

    return multiply


def _kernels(kind: Kind, form: Form, *num_rows: int) -> dict[int, Any]:
    return {rows: _make_product(kind, form, rows) for rows in num_rows}


# How many rows at once is fastest was measured (Zen 3): more rows need more registers than there are.
_multiply_float = _make_multiply(_kernels(Kind.FLOAT32, Form.FLOATS, 6, 2, 1))
_multiply_int8 = _make_multiply(_kernels(Kind.INT8, Form.WIDE, 4, 2, 1))
_multiply_wide = _make_multiply(_kernels(Kind.INT4, Form.WIDE, 4, 2, 1))
_multiply_narrow = _make_multiply(_kernels(Kind.INT4, Form.NARROW, 6, 2, 1))


@njit(nogil=True)
def multiply_tile(  # type: ignore[no-untyped-def]
    kind,
    form,
    weights,
    x,
    x_stride,
    scales,
    scale_stride,
    initial,
    initial_stride,
    out,
    out_stride,
    num_groups,
    num_rows,
):
    """``out[row, 0:8] = initial[row, 0:8] + tile @ x[row]`` for `num_rows` rows; addresses, and strides in bytes."""
    if kind == _INT8:
        _multiply_int8(
            weights, x, x_stride, scales, scale_stride, initial, initial_stride, out, out_stride, num_groups, num_rows
        )
    elif kind == _FLOAT32:
        _multiply_float(
            weights, x, x_stride, scales, scale_stride, initial, initial_stride, out, out_stride, num_groups, num_rows
        )
    elif form == _NARROW:
        _multiply_narrow(
            weights, x, x_stride, scales, scale_stride, initial, initial_stride, out, out_stride, num_groups, num_rows
        )
    else:
        _multiply_wide(
            weights, x, x_stride, scales, scale_stride, initial, initial_stride, out, out_stride, num_groups, num_rows
        )
