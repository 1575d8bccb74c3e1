"""Work on single rows of activations: RMSNorm, rounding to 8 or 16 bits or float16, SwiGLU. Arguments are addresses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

from chatserve.models.cpu import vector_code as code
from chatserve.models.cpu.memory import floats_at
from chatserve.models.cpu.products import (
    BLOCK_GROUP_BYTES,
    NARROW_LIMIT,
    ROW_BYTES,
    SCALES_OFFSET,
    SUMS_OFFSET,
    WIDE_LIMIT,
    Form,
)
from chatserve.models.cpu.tiles import GROUP, PAIR_ORDER
from chatserve.models.cpu.vector_code import FLOAT, FLOATS, INT8, INT16, LANES, VECTOR_BYTES, number

_WIDE, _NARROW = int(Form.WIDE), int(Form.NARROW)
_ROW_BYTES, _SCALES_OFFSET, _BLOCK_GROUP_BYTES = (
    tuple(sizes[form] for form in Form) for sizes in (ROW_BYTES, SCALES_OFFSET, BLOCK_GROUP_BYTES)
)
_ORDER = [column for pair in PAIR_ORDER for column in pair]


@code.intrinsic
def _sum_of_squares(typing, x, num_vectors):  # type: ignore[no-untyped-def]
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, num_vectors = args

        def step(index: Any, sums: list[Any]) -> list[Any]:
            values = code.load(builder, x, builder.mul(index, number(VECTOR_BYTES)))
            return [code.multiply_add(builder, values, values, sums[0])]

        (lanes,) = code.loop(builder, num_vectors, [code.floats(0.0)], step)
        return code.fold(builder, lanes, builder.fadd)

    return types.float32(types.int64, types.int64), generate


@code.intrinsic
def _scale_row(typing, x, factor, weights, out, num_vectors):  # type: ignore[no-untyped-def]
    """out = x * factor * weights."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, factor, weights, out, num_vectors = args
        factors = code.broadcast(builder, factor)

        def step(index: Any, state: list[Any]) -> list[Any]:
            offset = builder.mul(index, number(VECTOR_BYTES))
            scaled = builder.fmul(code.load(builder, x, offset), factors)
            code.store(builder, builder.fmul(scaled, code.load(builder, weights, offset)), out, offset)
            return []

        code.loop(builder, num_vectors, [], step)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64, types.int64, types.int64), generate


def _make_quantise(form: Form, limit: int) -> Any:
    """An intrinsic that rounds a row, group by group, to -limit..limit, into its place in a block (see `products`)."""

    @code.intrinsic
    def quantise(typing, x, out, scales, num_groups):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            x, out, scales, num_groups = args

            def step(index: Any, state: list[Any]) -> list[Any]:
                source = builder.add(x, builder.mul(index, number(4 * GROUP)))
                offset = builder.mul(index, number(BLOCK_GROUP_BYTES[form]))
                target, place = builder.add(out, offset), builder.add(scales, offset)
                vectors = [code.load(builder, source, VECTOR_BYTES * i) for i in range(GROUP // LANES)]
                top = _largest_magnitude(builder, vectors)
                inverse = code.broadcast(builder, builder.fdiv(FLOAT(float(limit)), top))
                scale = builder.fmul(top, FLOAT(float(np.float32(1 / limit))))
                rounded = [code.round_to_int(builder, builder.fmul(values, inverse)) for values in vectors]
                for i, values in enumerate(rounded):
                    _store_narrowed(builder, values, form, target, i)
                total = rounded[0]
                for values in rounded[1:]:
                    total = builder.add(total, values)
                total = builder.sitofp(code.fold(builder, total, builder.add), FLOAT)
                code.store(builder, scale, place)
                code.store(builder, builder.fmul(scale, total), place, SUMS_OFFSET)
                return []

            code.loop(builder, num_groups, [], step)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return quantise


def _largest_magnitude(builder: Any, vectors: list[Any]) -> Any:
    top = code.floats(1e-20)  # so that a group of zeros has a scale
    for values in vectors:
        top = code.largest(builder, code.call(builder, "llvm.fabs.v8f32", FLOATS, values), top)
    return code.fold(builder, top, lambda x, y: code.largest(builder, x, y))


def _store_narrowed(builder: Any, values: Any, form: Form, target: Any, index: int) -> None:
    if form == Form.NARROW:
        code.store(builder, builder.trunc(values, code.vector(INT8)), target, LANES * index)
        return
    ordered = code.reorder(builder, values, _ORDER)
    code.store(builder, builder.trunc(ordered, code.vector(INT16)), target, 2 * LANES * index)


_quantise_wide, _quantise_narrow = _make_quantise(Form.WIDE, WIDE_LIMIT), _make_quantise(Form.NARROW, NARROW_LIMIT)


@code.intrinsic
def swiglu(typing, gate, up, out):  # type: ignore[no-untyped-def]
    """8 numbers: ``out = gate * sigmoid(gate) * up``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        gates = code.load(builder, args[0])
        negated = builder.fsub(code.floats(0.0), gates)
        capped = builder.select(builder.fcmp_ordered("<", negated, code.floats(87.0)), negated, code.floats(87.0))
        divisor = builder.fadd(code.exponential(builder, capped), code.floats(1.0))
        code.store(builder, builder.fmul(builder.fdiv(gates, divisor), code.load(builder, args[1])), args[2])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


@code.intrinsic
def store_halves(typing, x, out, num_vectors):  # type: ignore[no-untyped-def]
    """Round 8 `num_vectors` float32 numbers to float16."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, out, num_vectors = args

        def step(index: Any, state: list[Any]) -> list[Any]:
            values = code.load(builder, x, builder.mul(index, number(VECTOR_BYTES)))
            code.store(builder, code.float_to_half(builder, values), out, builder.mul(index, number(2 * LANES)))
            return []

        code.loop(builder, num_vectors, [], step)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


@njit(nogil=True)
def normalise_row(x, weights, epsilon, num_columns, num_padded, out):  # type: ignore[no-untyped-def]
    """RMSNorm of float32[num_columns], followed by zeros up to `num_padded`, a multiple of 8."""
    mean = _sum_of_squares(x, num_padded // LANES) / np.float32(num_columns)
    _scale_row(x, np.float32(1) / np.float32(math.sqrt(mean + epsilon)), weights, out, num_padded // LANES)


@njit(nogil=True)
def store_row(form, x, block, place, num_groups):  # type: ignore[no-untyped-def]
    """Bring a float32 row of `num_groups` groups into `form`, as row `place` of the block at address `block`."""
    out, scales = block + place * _ROW_BYTES[form], block + _SCALES_OFFSET[form] + 4 * place
    if form == _WIDE:
        _quantise_wide(x, out, scales, num_groups)
    elif form == _NARROW:
        _quantise_narrow(x, out, scales, num_groups)
    else:
        for group in range(num_groups):
            floats_at(out + group * _BLOCK_GROUP_BYTES[form], GROUP)[:] = floats_at(x + 4 * GROUP * group, GROUP)
