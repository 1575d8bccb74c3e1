"""LLVM vector code that numba intrinsics are built from: 8 lanes of float32, addresses as int64, strides in bytes.

What x86 has a single instruction for and LLVM no portable one (sums of neighbouring products, half floats) is written
both ways; the portable code gives the same bits. Which one is taken is decided by the processor that numba compiles
for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic as _intrinsic

intrinsic: Any = _intrinsic  # numba's types count the typing context as an argument of the call

LANES = 8
VECTOR_BYTES = 4 * LANES
INT8, INT16, INT32, INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOAT, HALF, VOID = ir.FloatType(), ir.HalfType(), ir.VoidType()

_EXP_COEFFICIENTS = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
"""exp(f) = 1 + f + f^2 * polynomial(f) for |f| <= ln(2) / 2, highest power first (Cephes, expf.c)."""


_TRIPLE, _, _FEATURES = cpu_target.target_context.codegen().magic_tuple()
IS_X86 = _TRIPLE.startswith("x86_64")
HAS_AVX2 = IS_X86 and {"+avx2", "+fma", "+f16c"} <= set(_FEATURES.split(","))
"""Whether the code is compiled for a processor with AVX2, FMA and F16C (``NUMBA_CPU_FEATURES`` can deny them)."""


def vector(kind: Any, lanes: int = LANES) -> Any:
    return ir.VectorType(kind, lanes)


FLOATS, INTS = vector(FLOAT), vector(INT32)


def number(value: int) -> Any:
    return ir.Constant(INT64, value)


def splat(kind: Any, value: float) -> Any:
    """The vector type `kind` with `value` in every lane."""
    return ir.Constant(kind, [value] * kind.count)


def floats(value: float) -> Any:
    return splat(FLOATS, value)


def broadcast(builder: Any, scalar: Any) -> Any:
    undefined = ir.Constant(vector(scalar.type), ir.Undefined)
    return reorder(builder, builder.insert_element(undefined, scalar, ir.Constant(INT32, 0)), [0] * LANES)


def first_lane(builder: Any, lanes: Any) -> Any:
    return builder.extract_element(lanes, ir.Constant(INT32, 0))


def reorder(builder: Any, lanes: Any, order: list[int]) -> Any:
    """The vector of lanes order[0], order[1], ..."""
    undefined = ir.Constant(lanes.type, ir.Undefined)
    return builder.shuffle_vector(lanes, undefined, ir.Constant(vector(INT32, len(order)), order))


def load(builder: Any, address: Any, offset: Any = 0, kind: Any = FLOATS) -> Any:
    loaded = builder.load(_pointer(builder, address, offset, kind))
    loaded.align = 1
    return loaded


def store(builder: Any, value: Any, address: Any, offset: Any = 0) -> None:
    builder.store(value, _pointer(builder, address, offset, value.type)).align = 1


def prefetch(builder: Any, address: Any, offset: int) -> None:
    """Ask for the cache line at an address, which need not be a valid one."""
    kind = ir.FunctionType(VOID, [INT8.as_pointer(), INT32, INT32, INT32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    read, all_levels, data = (ir.Constant(INT32, value) for value in (0, 3, 1))
    builder.call(function, [_pointer(builder, address, offset, INT8), read, all_levels, data])


def _pointer(builder: Any, address: Any, offset: Any, kind: Any) -> Any:
    if isinstance(offset, int):
        offset = number(offset)
    return builder.inttoptr(builder.add(address, offset), kind.as_pointer())


def call(builder: Any, name: str, result: Any, *operands: Any) -> Any:
    """Call an LLVM intrinsic or a C function by name."""
    kind = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), operands)


def call_address(builder: Any, address: Any, operands: list[Any]) -> None:
    """Call the C function without a result at `address`."""
    kind = ir.FunctionType(VOID, [operand.type for operand in operands])
    builder.call(builder.inttoptr(address, kind.as_pointer()), operands)


def multiply_add(builder: Any, x: Any, y: Any, z: Any) -> Any:
    return call(builder, "llvm.fma.v8f32" if HAS_AVX2 else "llvm.fmuladd.v8f32", FLOATS, x, y, z)


def largest(builder: Any, x: Any, y: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def fold(builder: Any, lanes: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Combine the 8 lanes pairwise, in a fixed order."""
    items = [builder.extract_element(lanes, ir.Constant(INT32, lane)) for lane in range(LANES)]
    while len(items) > 1:
        half = len(items) // 2
        items = [combine(items[i], items[i + half]) for i in range(half)]
    return items[0]


def loop(builder: Any, count: Any, initial: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """``for i in range(count): state = body(i, state)`` with the state in registers; `count` is at least 1."""
    before = builder.block
    inside, after = builder.append_basic_block("inside"), builder.append_basic_block("after")
    builder.branch(inside)
    builder.position_at_end(inside)
    index = builder.phi(INT64)
    index.add_incoming(number(0), before)
    state = [builder.phi(value.type) for value in initial]
    for phi, value in zip(state, initial, strict=True):
        phi.add_incoming(value, before)
    new_state = body(index, state)
    following = builder.add(index, number(1))
    index.add_incoming(following, builder.block)
    for phi, value in zip(state, new_state, strict=True):
        phi.add_incoming(value, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, count), inside, after)
    builder.position_at_end(after)
    return new_state


def pair_products(builder: Any, x: Any, y: Any) -> Any:
    """int16[16] x int16[16] -> int32[8]: sums of two neighbouring products (``pmaddwd``)."""
    if HAS_AVX2:
        return call(builder, "llvm.x86.avx2.pmadd.wd", INTS, x, y)
    wide = vector(INT32, 16)
    product = builder.mul(builder.sext(x, wide), builder.sext(y, wide))
    even, odd = (reorder(builder, product, list(range(side, 16, 2))) for side in (0, 1))
    return builder.add(even, odd)


def byte_pair_products(builder: Any, unsigned: Any, signed: Any) -> Any:
    """uint8[32] x int8[32] -> int16[16]: sums of two neighbouring products (``pmaddubsw``); they must fit."""
    if HAS_AVX2:
        return call(builder, "llvm.x86.avx2.pmadd.ub.sw", vector(INT16, 16), unsigned, signed)
    wide = vector(INT16, 32)
    product = builder.mul(builder.zext(unsigned, wide), builder.sext(signed, wide))
    even, odd = (reorder(builder, product, list(range(side, 32, 2))) for side in (0, 1))
    return builder.add(even, odd)


def half_to_float(builder: Any, halves: Any) -> Any:
    """float16[8], given as int16[8], to float32[8]; finite values only."""
    if HAS_AVX2:
        return builder.fpext(builder.bitcast(halves, vector(HALF)), FLOATS)
    bits = builder.zext(halves, INTS)
    magnitude = builder.shl(builder.and_(bits, splat(INTS, 0x7FFF)), splat(INTS, 13))
    scaled = builder.fmul(
        builder.bitcast(magnitude, FLOATS), floats(2.0**112)
    )  # the exponent's bias: 127 instead of 15
    sign = builder.shl(builder.and_(bits, splat(INTS, 0x8000)), splat(INTS, 16))
    return builder.bitcast(builder.or_(builder.bitcast(scaled, INTS), sign), FLOATS)


def float_to_half(builder: Any, values: Any) -> Any:
    """float32[8] to the nearest float16[8], given as int16[8]; half to even, at most 65504 in magnitude."""
    limit = floats(65504.0)
    values = builder.select(builder.fcmp_ordered("<", values, limit), values, limit)
    values = largest(builder, values, floats(-65504.0))
    if HAS_AVX2:
        return builder.bitcast(builder.fptrunc(values, vector(HALF)), vector(INT16))
    bits = builder.bitcast(values, INTS)
    magnitude = builder.and_(bits, splat(INTS, 0x7FFFFFFF))
    # Adding 0.5 to a number below the smallest normal one leaves its float16 in the low bits, rounded by the addition.
    tiny = builder.fadd(builder.bitcast(magnitude, FLOATS), floats(0.5))
    tiny = builder.sub(builder.bitcast(tiny, INTS), splat(INTS, 0x3F000000))
    is_odd = builder.and_(builder.lshr(magnitude, splat(INTS, 13)), splat(INTS, 1))
    rounded = builder.add(builder.add(magnitude, is_odd), splat(INTS, 0xFFF - (112 << 23)))
    is_normal = builder.icmp_signed(">=", magnitude, splat(INTS, 0x38800000))
    half = builder.select(is_normal, builder.lshr(rounded, splat(INTS, 13)), tiny)
    sign = builder.and_(builder.lshr(bits, splat(INTS, 16)), splat(INTS, 0x8000))
    return builder.trunc(builder.or_(half, sign), vector(INT16))


def round_to_int(builder: Any, x: Any) -> Any:
    """float32[8] to int32[8], half to even."""
    return builder.fptosi(call(builder, "llvm.nearbyint.v8f32", FLOATS, x), INTS)


def exponential(builder: Any, x: Any) -> Any:
    """exp(x) for x <= 87, to 1e-7; exactly 0 below -87, so that a hidden token adds nothing; NaN of NaN."""
    given = x
    is_visible = builder.fcmp_ordered(">=", x, floats(-87.0))
    x = builder.select(is_visible, x, floats(-87.0))
    power = call(builder, "llvm.nearbyint.v8f32", FLOATS, builder.fmul(x, floats(math.log2(math.e))))
    rest = multiply_add(builder, power, floats(-0.693359375), x)
    rest = multiply_add(builder, power, floats(2.12194440e-4), rest)
    polynomial = floats(_EXP_COEFFICIENTS[0])
    for coefficient in _EXP_COEFFICIENTS[1:]:
        polynomial = multiply_add(builder, polynomial, rest, floats(coefficient))
    small = builder.fadd(multiply_add(builder, polynomial, builder.fmul(rest, rest), rest), floats(1.0))
    exponent = builder.shl(builder.fptosi(power, INTS), splat(INTS, 23))
    scaled = builder.bitcast(builder.add(builder.bitcast(small, INTS), exponent), FLOATS)
    is_number = builder.fcmp_ordered("ord", given, given)
    return builder.select(is_visible, scaled, builder.select(is_number, floats(0.0), given))
