"""Single instructions of the interpreter, against values worked out by hand or by NumPy's own types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ptx.arithmetic import pack_half, unpack_half
from tests.ptx.global_memory import GlobalMemory
from tests.ptx.machine import run
from tests.ptx.program import parse

BODY = """
.visible .entry f(.param .u64 f_param_0)
{{
    .reg .pred %p<4>; .reg .b16 %rs<4>; .reg .b32 %r<20>; .reg .f32 %f<20>; .reg .b64 %rd<9>; .reg .f64 %fd<4>;
    ld.param.u64 %rd1, [f_param_0];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    {text}
    st.global.u32 [%rd3], %r9;
    ret;
}}
"""


def outcome(text: str) -> Any:
    """What 32 lanes leave in %r9 after `text`, in which %r1 is the lane: uint32[32]."""
    memory, out = GlobalMemory(), np.zeros(32, np.uint32)
    run(parse(BODY.format(text=text)), (1, 1, 1), 32, [memory.add(out)], memory)
    return out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("add.s32 %r9, %r1, -1;", 0xFFFFFFFF),
        ("sub.s32 %r9, 3, %r1;", 3),
        ("mul.lo.s32 %r9, 65536, 65537;", 65536),
        ("mul.hi.u32 %r9, 65536, 65537;", 1),
        ("mad.lo.s32 %r9, -2, 3, 1;", 0xFFFFFFFB),
        ("mad.wide.s32 %rd4, -1, 2, 7; cvt.u32.u64 %r9, %rd4;", 5),
        ("div.s32 %r9, -7, 2;", 0xFFFFFFFD),
        ("rem.s32 %r9, -7, 2;", 0xFFFFFFFF),
        ("shl.b32 %r9, 1, 32;", 0),
        ("shr.s32 %r9, -8, 1;", 0xFFFFFFFC),
        ("shr.u32 %r9, -8, 40;", 0),
        ("min.s32 %r9, -1, 1;", 0xFFFFFFFF),
        ("min.u32 %r9, -1, 1;", 1),
        ("and.b32 %r9, 12, 10;", 8),
        ("not.b32 %r9, 0;", 0xFFFFFFFF),
        ("bfi.b32 %r9, 5, 0, 4, 3;", 0x50),
        ("bfe.u32 %r9, 80, 4, 3;", 5),
        ("cvt.s64.s32 %rd4, -1; shr.u64 %rd5, %rd4, 32; cvt.u32.u64 %r9, %rd5;", 0xFFFFFFFF),
        ("cvt.u64.u32 %rd4, -1; shr.u64 %rd5, %rd4, 32; cvt.u32.u64 %r9, %rd5;", 0),
        ("mov.b64 %rd4, {7, 9}; mov.b64 {%r8, %r9}, %rd4;", 9),
        ("cvt.rn.f32.s32 %f1, -3; cvt.rzi.s32.f32 %r9, %f1;", 0xFFFFFFFD),
        ("mov.f32 %f1, 0f3FC00000; mov.b32 %r9, %f1;", 0x3FC00000),
        ("mov.f32 %f1, 0f40000000; ex2.approx.ftz.f32 %f2, %f1; mov.b32 %r9, %f2;", 0x40800000),
        ("mov.f32 %f1, 0f40000000; fma.rn.f32 %f2, %f1, %f1, %f1; mov.b32 %r9, %f2;", 0x40C00000),
        ("mov.f32 %f1, 0f3F800000; cvt.rn.bf16x2.f32 %r9, %f1, 0f40000000;", 0x3F804000),
        ("mov.f32 %f1, 0f3F800000; cvt.rn.f16x2.f32 %r9, %f1, 0f40000000;", 0x3C004000),
        ("setp.lt.s32 %p1, -1, 0; selp.b32 %r9, 1, 2, %p1;", 1),
        ("setp.lt.u32 %p1, -1, 0; selp.b32 %r9, 1, 2, %p1;", 2),
        ("mov.f32 %f1, 0f7FC00000; setp.ltu.f32 %p1, %f1, %f1; selp.b32 %r9, 1, 2, %p1;", 1),
        ("mov.f32 %f1, 0f7FC00000; setp.ne.f32 %p1, %f1, %f1; selp.b32 %r9, 1, 2, %p1;", 2),
        ("{ .reg .pred p; setp.ne.b32 p, 1, 0; mov.b32 %r9, 3; @p mov.b32 %r9, 4; }", 4),
    ],
)
def test_an_instruction(text: str, expected: int) -> None:
    assert outcome(text)[0] == expected


def test_a_product_is_rounded_once() -> None:
    """fma(1 + e, 1 - e, -1) is -e * e, which a rounded product loses."""
    text = "mov.f32 %f1, 0f3F800001; mov.f32 %f2, 0f3F7FFFFE; mov.f32 %f3, 0fBF800000; fma.rn.f32 %f4, %f1, %f2, %f3;"
    assert outcome(text + " mov.b32 %r9, %f4;").view(np.float32)[0] == -(2.0**-46)


def test_lanes_branch_loop_and_meet_again() -> None:
    """Lane i counts to i; odd lanes then add 100 on a path of their own."""
    text = """
    mov.u32 %r9, 0;
    setp.eq.s32 %p1, %r1, 0;
    @%p1 bra $done;
    $again:
    add.s32 %r9, %r9, 1;
    setp.lt.s32 %p2, %r9, %r1;
    @%p2 bra $again;
    and.b32 %r5, %r1, 1;
    setp.eq.s32 %p3, %r5, 0;
    @!%p3 add.s32 %r9, %r9, 100;
    $done:
    shfl.sync.bfly.b32 %r7|%p1, %r9, 0, 31, -1;
    """
    lanes = np.arange(32)
    assert outcome(text).tolist() == (lanes + 100 * (lanes % 2)).tolist()


@pytest.mark.parametrize(
    ("mode", "operand", "source"),
    [
        ("bfly", 5, lambda lane: lane ^ 5),
        ("down", 3, lambda lane: lane + 3 if lane + 3 < 32 else lane),
        ("up", 3, lambda lane: lane - 3 if lane >= 3 else lane),
        ("idx", 7, lambda lane: 7),
    ],
)
def test_shuffles(mode: str, operand: int, source: Any) -> None:
    clamp = 0 if mode == "up" else 31
    text = f"mul.lo.s32 %r5, %r1, 10; shfl.sync.{mode}.b32 %r9|%p1, %r5, {operand}, {clamp}, -1;"
    assert outcome(text).tolist() == [10 * source(lane) for lane in range(32)]


@given(st.floats(width=32, allow_nan=False))
def test_bfloat16_is_the_nearest_with_ties_to_even(number: float) -> None:
    """Of the two neighbours cut off at 16 bits, the nearer; on a tie the even one. Overflow goes to infinity."""
    bits = int(np.float32(number).view(np.uint32))
    below, above = bits >> 16, (bits >> 16) + 1
    rest = bits & 0xFFFF
    expected = below if rest < 0x8000 or (rest == 0x8000 and below % 2 == 0) else above
    packed = pack_half(np.array([number], np.float32), "bf16")
    assert packed[0] == expected
    assert unpack_half(packed, "bf16")[0] == np.uint32(expected << 16).view(np.float32)
