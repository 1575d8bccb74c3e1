"""The interpreter finds what a GPU would punish or might not notice, and names the instruction."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.faults import KernelFault
from tests.ptx.global_memory import GlobalMemory
from tests.ptx.machine import run
from tests.ptx.program import parse

BODY = """
.shared .align 16 .b8 shared[512];
.shared .align 4 .b8 unaligned[8];
.visible .entry f(.param .u64 f_param_0)
{{
    .reg .pred %p<9>; .reg .b32 %r<30>; .reg .b64 %rd<9>; .reg .f32 %f<30>;
    ld.param.u64 %rd1, [f_param_0];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, shared;
    shl.b32 %r3, %r1, 2;
    add.s32 %r4, %r2, %r3;
    xor.b32 %r5, %r3, 128;
    add.s32 %r6, %r2, %r5;
    shl.b32 %r7, %r1, 4;
    add.s32 %r8, %r2, %r7;
    cvt.u64.u32 %rd2, %r3;
    add.s64 %rd3, %rd1, %rd2;
    setp.lt.u32 %p1, %r1, 8;
    setp.eq.u32 %p2, %r1, 0;
    {text}
    ret;
}}
"""


def execute(text: str, num_threads: int = 64, num_words: int = 64, num_blocks: int = 1) -> np.ndarray:
    """Threads with 4 bytes of shared memory each at %r4, their partner's in the other warp at %r6, and of global
    memory at %rd3; 16 bytes each at %r8. %p1: one of the first eight lanes, %p2: the first."""
    memory, numbers = GlobalMemory(), np.zeros(num_words + 4, np.uint32)[:num_words]
    run(parse(BODY.format(text=text)), (num_blocks, 1, 1), num_threads, [memory.add(numbers)], memory)
    return numbers


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("ld.global.u32 %r9, [%rd3+4];", "outside every array, at offset 256 of an array of 256 bytes"),
        ("st.global.u32 [%rd3+-4], %r1;", "outside every array, at offset -4"),
        ("ld.global.v4.u32 {%r9, %r10, %r11, %r12}, [%rd3];", "misaligned load of 16 bytes"),
        ("ld.global.u32 %r9, [%rd3+2];", "misaligned load of 4 bytes"),
        ("st.global.u32 [%rd1], %r1;", "two threads of a launch write the same global memory"),
        ("ld.global.u32 %r9, [%rd1]; st.global.u32 [%rd3], %r1;", "another thread of the launch has read"),
        ("@%p2 st.global.u32 [%rd1], %r1; ld.global.u32 %r9, [%rd1];", "another thread of the launch has written"),
        ("ld.shared.u32 %r9, [%r4];", "shared memory that nobody has written"),
        ("st.shared.u32 [%r4+512], %r1;", "store outside shared memory"),
        (
            "mov.u32 %r9, unaligned; ld.shared.v2.u32 {%r10, %r11}, [%r9];",
            "misaligned load of 8 bytes in shared memory",
        ),
        ("st.shared.u32 [%r4+2], %r1;", "misaligned store of 4 bytes in shared memory"),
        ("st.shared.u32 [%r4], %r1; ld.shared.u32 %r9, [%r6];", "race: a lane reads shared memory that another wrote"),
        ("st.shared.u32 [shared], 1;", "race: two lanes write the same shared memory in one instruction"),
        ("st.shared.u32 [%r4], %r1; st.shared.u32 [%r6], %r1;", "race: two lanes write the same shared memory without"),
        (
            "st.shared.u32 [%r4], %r1; bar.sync 0; ld.shared.u32 %r9, [%r4]; st.shared.u32 [%r6], %r1;",
            "race: a lane writes shared memory that another read",
        ),
        (
            "st.shared.u32 [%r4], %r1; bar.sync 0; ld.shared.u32 %r9, [shared]; @%p2 st.shared.u32 [shared], 5;",
            "race: a lane writes shared memory that another read",
        ),
        ("@%p1 bra $end; shfl.sync.bfly.b32 %r9|%p3, %r1, 1, 31, -1; $end:", "by only some lanes of a warp"),
        ("shfl.sync.bfly.b32 %r9|%p3, %r1, 1, 31, 255;", "shuffles name all lanes"),
        ("@%p1 bra $end; bar.sync 0; $end:", "some have ended"),
        ("@%p1 bra $other; bar.sync 0; bra.uni $end; $other: bar.sync 0; $end:", "wait at different barriers"),
        ("cp.async.cg.shared.global [%r8], [%rd1], 16, 16; bar.sync 0; ld.shared.u32 %r9, [%r8];", "in flight"),
        ("cp.async.cg.shared.global [%r8], [%rd1], 16, 16;", "the kernel ends while copies"),
        ("ld.global.u32 %r9, [%rd8];", "0x7fd5d5d57fd5d5d5"),
        ("popc.b32 %r9, %r1;", "unknown instruction"),
    ],
)
def test_a_fault_is_found(text: str, fault: str) -> None:
    with pytest.raises(KernelFault) as caught:
        execute(text, num_threads=32 if "cp.async" in text else 64)
    assert fault in str(caught.value)
    assert "\n  at: " in str(caught.value) or "ends while" in fault or "wait at" in fault or "have ended" in fault


@pytest.mark.parametrize(
    "text",
    [
        "st.shared.u32 [%r4], %r1; bar.sync 0; ld.shared.u32 %r9, [%r6]; st.global.u32 [%rd3], %r9;",
        """
        st.shared.u32 [%r6], %r1; ld.shared.u32 %r10, [%r6]; bar.sync 0; ld.shared.u32 %r9, [%r4]; bar.sync 0;
        st.shared.u32 [%r6], %r9; st.global.u32 [%rd3], %r9;
        """,
    ],
)
def test_barriers_make_shared_memory_safe(text: str) -> None:
    assert execute(text).tolist() == [lane ^ 32 for lane in range(64)]


def test_blocks_have_shared_memory_of_their_own() -> None:
    """Two blocks write different words of it; the second's are not there for the first."""
    text = "mov.u32 %r9, %ctaid.x; setp.eq.u32 %p3, %r9, 1; @%p3 st.shared.u32 [%r4], %r1; ld.shared.u32 %r10, [%r4];"
    with pytest.raises(KernelFault, match="nobody has written"):
        execute(text, num_blocks=2)


def test_a_copy_that_was_awaited_is_there_after_a_barrier() -> None:
    text = """
    mov.u32 %r20, 0;
    @%p2 mov.u32 %r20, 16;
    cp.async.cg.shared.global [%r8], [%rd1], 16, %r20;
    cp.async.wait_all;
    bar.sync 0;
    ld.shared.u32 %r9, [shared+12];
    st.shared.u32 [%r4+256], %r9;
    """
    execute(text, num_threads=32)


def test_awaiting_is_not_seen_by_other_lanes_without_a_barrier() -> None:
    text = "cp.async.cg.shared.global [%r8], [%rd1], 16, 0; cp.async.wait_all; ld.shared.u32 %r9, [shared];"
    with pytest.raises(KernelFault, match="race: a lane reads"):
        execute(text, num_threads=32)
