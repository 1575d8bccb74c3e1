"""The tests notice when a kernel is wrong: faults planted in its PTX or its source are each caught."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from cuda_kernels import combine, write
from cuda_kernels.compiled import CompiledKernel
from cuda_kernels.element_type import BFLOAT16, FLOAT32
from tests.cuda_kernels.attention_problem import Problem, Rule, Shape, check, run_decode, run_extend
from tests.cuda_kernels.compiling import decode_kernel, extend_kernel
from tests.cuda_kernels.test_write_kernel import run_write
from tests.ptx.faults import KernelFault

CAUGHT = (KernelFault, AssertionError)
Change = Callable[[str], str]


def first(pattern: str, replacement: str, after: str = "") -> Change:
    """Replace the first match that lies behind the first occurrence of `after`."""

    def change(text: str) -> str:
        start = text.index(after)
        return text[:start] + re.sub(pattern, replacement, text[start:], count=1)

    return change


def each(pattern: str, replacement: str, after: str = "") -> Change:
    def change(text: str) -> str:
        start = text.index(after)
        return text[:start] + re.sub(pattern, replacement, text[start:])

    return change


def last(pattern: str, replacement: str) -> Change:
    def change(text: str) -> str:
        found = list(re.finditer(pattern, text))[-1]
        return text[: found.start()] + found.expand(replacement) + text[found.end() :]

    return change


def off_by_one_causal_mask(ptx: str) -> str:
    """Between the products of the scores and the first shuffle, every query's end moves by one."""
    start = ptx.index("mma.sync")
    end = ptx.index("shfl.sync", start)
    return (
        ptx[:start] + re.sub(r"setp\.lt\.", "setp.le.", re.sub(r"setp\.gt\.", "setp.ge.", ptx[start:end])) + ptx[end:]
    )


IN_DECODE: dict[str, Change] = {
    "a missing barrier": first(r"bar\.sync[^;]*;", ";"),
    "a token too many is loaded": each(r"setp\.gt\.s32(\s+%p\d+, %r\d+, %r\d+;)", r"setp.ge.s32\1", after="mad.lo.s32"),
    "the token's number taken for its table row": first(r"(ld\.global\.[us]32\s+%r\d+, \[%rd\d+)\+4\]", r"\1]"),
    "a table of another width": first(r"(ld\.param\.u32[^;]*_param_)6\]", r"\g<1>11]"),
    "a block of another size": each(r"mad\.lo\.s32(\s+%r\d+), (%r\d+), %r\d+, (%r\d+);", r"add.s32\1, \2, \3;"),
    "sums that keep the weight of an old maximum": first(
        r"ex2\.approx\.ftz\.f32 (%f\d+), %f\d+;", r"mov.f32 \1, 0f3F800000;", after="max.ftz.f32"
    ),
    "a shuffle with the wrong lanes": first(r"shfl\.sync\.bfly", "shfl.sync.down"),
    "keys read as values": first(r"(ld\.param\.u64[^;]*_param_)4\]", r"\g<1>3]"),
}
IN_EXTEND: dict[str, Change] = {
    "a missing barrier before the values": last(r"bar\.sync[^;]*;", ";"),
    "a missing barrier before the keys": first(r"bar\.sync[^;]*;", ";"),
    "a copy that is not awaited": last(r"cp\.async\.wait_all;", ";"),
    "a causal mask that is off by one": off_by_one_causal_mask,
    "matrices that are not transposed": first(
        r"ldmatrix\.sync\.aligned\.m8n8\.x4\.trans", "ldmatrix.sync.aligned.m8n8.x4"
    ),
}
IN_WRITE = {
    "a wrong stride": ("head * (key_head", "head * (key_token"),
    "a slot of another block": ("block * num_kv_heads", "block * 2"),
}
IN_COMBINE = {
    "an unscaled split": ("word * per_word] * weight", "word * per_word]"),
    "a split that is left out": (
        "for split in range(num_splits):\n            piece",
        "for split in range(1, num_splits):\n            piece",
    ),
}


def decode_problem() -> Problem:
    return Problem(Shape("float32", 64, 2, 3, 8), [(150, 2), (37, 1)], are_consecutive=False, seed=1)


def extend_problem() -> Problem:
    return Problem(Shape("bfloat16", 64, 1, 3, 16), [(80, 40), (150, 7)], are_consecutive=False, seed=1)


def changed(kernel: CompiledKernel, change: Change) -> CompiledKernel:
    ptx = change(kernel.ptx)
    assert ptx != kernel.ptx, "the fault was not planted"
    return replace(kernel, ptx=ptx)


def changed_module(module: ModuleType, fault: tuple[str, str]) -> Any:
    """The module with a text in its source replaced."""
    source = inspect.getsource(module)
    assert source.count(fault[0]) == 1
    faulty = ModuleType(module.__name__)
    exec(compile(source.replace(*fault), str(module.__file__), "exec"), faulty.__dict__)
    return faulty


def test_without_a_fault_all_is_well() -> None:
    rule = Rule(num_splits=2)
    check(decode_problem(), rule, run_decode(decode_problem(), rule))
    check(extend_problem(), Rule(), run_extend(extend_problem(), Rule()))


@pytest.mark.parametrize("fault", IN_DECODE)
def test_decode(fault: str) -> None:
    kernel, rule = changed(decode_kernel("float32", 64, 3, False), IN_DECODE[fault]), Rule(num_splits=2)
    with pytest.raises(CAUGHT):
        check(decode_problem(), rule, run_decode(decode_problem(), rule, kernel=kernel))


@pytest.mark.parametrize("fault", IN_EXTEND)
def test_extend(fault: str) -> None:
    kernel = changed(extend_kernel("bfloat16", 64, False), IN_EXTEND[fault])
    with pytest.raises(CAUGHT):
        check(extend_problem(), Rule(), run_extend(extend_problem(), Rule(), kernel=kernel))


@pytest.mark.parametrize("fault", IN_WRITE)
def test_write(fault: str) -> None:
    kernel = changed_module(write, IN_WRITE[fault]).compile_write(BFLOAT16, BFLOAT16, 64)
    with pytest.raises(CAUGHT):
        run_write(("bfloat16", "bfloat16", 64), 8, is_strided=True, kernel=kernel)


@pytest.mark.parametrize("fault", IN_COMBINE)
def test_combine(fault: str) -> None:
    kernel = changed_module(combine, IN_COMBINE[fault]).compile_combine(FLOAT32, 64)
    rule = Rule(num_splits=3)
    with pytest.raises(CAUGHT):
        check(decode_problem(), rule, run_decode(decode_problem(), rule, combine=kernel))
