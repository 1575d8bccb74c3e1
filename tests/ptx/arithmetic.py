"""The arithmetic of PTX on vectors of lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Lanes = Any
"""NumPy array of one number a lane, or of one number for all."""

DTYPES: dict[str, Any] = {
    "pred": np.bool_,
    **{f"b{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
WIDER: dict[str, str] = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}

Operation = Callable[[tuple[str, ...], str, list[Lanes]], Lanes]
"""(modifiers, type, sources in that type) to the result."""


def _multiply(modifiers: tuple[str, ...], kind: str, sources: list[Lanes]) -> Lanes:
    left, right = sources[:2]
    if "wide" in modifiers:
        wide = DTYPES[WIDER[kind]]
        return left.astype(wide) * right.astype(wide)
    if "hi" in modifiers:
        bits = 8 * DTYPES[kind].itemsize
        product = [int(a) * int(b) >> bits for a, b in np.broadcast(left, right)]
        return np.array(product, object).astype(DTYPES[kind])
    return left * right


def _multiply_add(modifiers: tuple[str, ...], kind: str, sources: list[Lanes]) -> Lanes:
    return _multiply(modifiers, kind, sources) + sources[2]


def _fused_multiply_add(modifiers: tuple[str, ...], kind: str, sources: list[Lanes]) -> Lanes:
    """Rounded once: the product of two float32 is exact in float64."""
    if kind == "f64":
        return sources[0] * sources[1] + sources[2]
    a, b, c = (source.astype(np.float64) for source in sources)
    return (a * b + c).astype(DTYPES[kind])


def _divide(modifiers: tuple[str, ...], kind: str, sources: list[Lanes]) -> Lanes:
    left, right = sources
    if kind.startswith("f"):
        return left / right
    safe = np.where(right == 0, 1, right).astype(right.dtype)  # lanes that are switched off may hold anything
    magnitude = np.abs(left) // np.abs(safe)
    return np.where((left < 0) != (safe < 0), -magnitude, magnitude).astype(left.dtype)


def _remainder(modifiers: tuple[str, ...], kind: str, sources: list[Lanes]) -> Lanes:
    left, right = sources
    safe = np.where(right == 0, 1, right).astype(right.dtype)
    return np.fmod(left, safe)


def _shift_left(modifiers: tuple[str, ...], kind: str, sources: list[Lanes]) -> Lanes:
    value, distance = sources
    bits = 8 * value.dtype.itemsize
    shifted = value << np.minimum(distance, bits - 1).astype(value.dtype)
    return np.where(distance >= bits, value.dtype.type(0), shifted)


def _shift_right(modifiers: tuple[str, ...], kind: str, sources: list[Lanes]) -> Lanes:
    value, distance = sources
    bits = 8 * value.dtype.itemsize
    shifted = value >> np.minimum(distance, bits - 1).astype(value.dtype)
    return shifted if kind.startswith("s") else np.where(distance >= bits, value.dtype.type(0), shifted)


def _insert_bits(modifiers: tuple[str, ...], kind: str, sources: list[Lanes]) -> Lanes:
    """``bfi``: the low `length` bits of the first source, put into the second at `start`."""
    inserted, base, start, length = (source.astype(np.uint64) for source in sources)
    field = (np.uint64(1) << length) - np.uint64(1) << start
    return (base & ~field | inserted << start & field).astype(DTYPES[kind])


def _extract_bits(modifiers: tuple[str, ...], kind: str, sources: list[Lanes]) -> Lanes:
    """``bfe.u32``: `length` bits from `start` on."""
    value, start, length = (source.astype(np.uint64) for source in sources)
    return (value >> start & (np.uint64(1) << length) - np.uint64(1)).astype(DTYPES[kind])


def _maximum(modifiers: tuple[str, ...], kind: str, sources: list[Lanes]) -> Lanes:
    """A NaN gives way to a number, as the hardware does."""
    return np.fmax(*sources)


def _minimum(modifiers: tuple[str, ...], kind: str, sources: list[Lanes]) -> Lanes:
    return np.fmin(*sources)


def _invert(modifiers: tuple[str, ...], kind: str, sources: list[Lanes]) -> Lanes:
    return ~sources[0]


def _exponential(modifiers: tuple[str, ...], kind: str, sources: list[Lanes]) -> Lanes:
    result = np.exp2(sources[0].astype(np.float64)).astype(np.float32)
    return np.where(np.abs(result) < np.finfo(np.float32).tiny, np.float32(0), result)


OPERATIONS: dict[str, Operation] = {
    "add": lambda modifiers, kind, sources: sources[0] + sources[1],
    "sub": lambda modifiers, kind, sources: sources[0] - sources[1],
    "mul": _multiply,
    "mad": _multiply_add,
    "fma": _fused_multiply_add,
    "div": _divide,
    "rem": _remainder,
    "min": _minimum,
    "max": _maximum,
    "neg": lambda modifiers, kind, sources: -sources[0],
    "abs": lambda modifiers, kind, sources: np.abs(sources[0]),
    "and": lambda modifiers, kind, sources: sources[0] & sources[1],
    "or": lambda modifiers, kind, sources: sources[0] | sources[1],
    "xor": lambda modifiers, kind, sources: sources[0] ^ sources[1],
    "not": _invert,
    "shl": _shift_left,
    "shr": _shift_right,
    "bfi": _insert_bits,
    "bfe": _extract_bits,
    "ex2": _exponential,
    "rcp": lambda modifiers, kind, sources: sources[0].dtype.type(1) / sources[0],
    "sqrt": lambda modifiers, kind, sources: np.sqrt(sources[0]),
    "mov": lambda modifiers, kind, sources: sources[0],
    "cvta": lambda modifiers, kind, sources: sources[0],
}

_COMPARISONS: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


def compare(name: str, left: Lanes, right: Lanes) -> Lanes:
    """``setp``'s comparison; names like "ltu" are true when an operand is not a number, "ne" is not."""
    unordered = np.isnan(left) | np.isnan(right) if left.dtype.kind == "f" else np.False_
    if name not in _COMPARISONS and name.endswith("u"):
        return _COMPARISONS[name[:-1]](left, right) | unordered
    return _COMPARISONS[name](left, right) & ~unordered


def convert(modifiers: tuple[str, ...], sources: list[Lanes]) -> Lanes:
    """``cvt``; the last two modifiers are the target's and the source's type."""
    target, source = modifiers[-2:]
    if target in ("f16x2", "bf16x2"):
        high, low = (pack_half(number, target[:-2]) for number in sources)
        return high.astype(np.uint32) << np.uint32(16) | low.astype(np.uint32)
    value = sources[0]
    if source.startswith("f") and not target.startswith("f"):
        return np.trunc(np.nan_to_num(value)).astype(DTYPES[target])
    return value.astype(DTYPES[target])


def pack_half(number: Lanes, kind: str) -> Lanes:
    """float32 to the bits of "f16" or "bf16", to nearest even: uint16."""
    if kind == "f16":
        return number.astype(np.float16).view(np.uint16)
    bits = np.ascontiguousarray(number).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return np.where(np.isnan(number), np.uint32(0x7FFF), rounded >> np.uint32(16)).astype(np.uint16)


def unpack_half(bits: Lanes, kind: str) -> Lanes:
    """Bits of "f16" or "bf16" to float32."""
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
