"""What the compiled kernels are on real devices: registers, spills and 128-bit accesses, in their machine code."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib.metadata import files
from pathlib import Path

import pytest

from cuda_kernels.compiled import MAX_SHARED_BYTES, CompiledKernel
from tests.cuda_kernels import compiling

ARCHITECTURES = ["sm_80", "sm_90"]
QUICK: dict[str, tuple[Callable[[], CompiledKernel], int]] = {
    "decode float32 64 x 3": (lambda: compiling.decode_kernel("float32", 64, 3, False), 128),
    "decode bfloat16 64 x 3": (lambda: compiling.decode_kernel("bfloat16", 64, 3, False), 136),
    "decode float16 80 x 1 softcap": (lambda: compiling.decode_kernel("float16", 80, 1, True), 96),
    "extend bfloat16 64": (lambda: compiling.extend_kernel("bfloat16", 64, False), 168),
    "extend float16 80 softcap": (lambda: compiling.extend_kernel("float16", 80, True), 184),
    "combine float32 64": (lambda: compiling.combine_kernel("float32", 64), 48),
    "write float32 to bfloat16 64": (lambda: compiling.write_kernel("float32", "bfloat16", 64), 40),
    "write bfloat16 to bfloat16 80": (lambda: compiling.write_kernel("bfloat16", "bfloat16", 80), 40),
    "copy blocks": (lambda: compiling.block_kernel("copy"), 40),
    "gather blocks": (lambda: compiling.block_kernel("gather"), 40),
    "scatter blocks": (lambda: compiling.block_kernel("scatter"), 40),
}
"""Kernel and the most registers a thread may take."""
FULL = [
    *(("decode", kind, head_dim, heads, cap) for kind in ("float32", "float16", "bfloat16")
      for head_dim in (64, 80, 96, 128, 256) for heads in (1, 2, 4, 5, 7, 8) for cap in (False, True)),
    *(("extend", kind, head_dim, 0, cap) for kind in ("float16", "bfloat16") for head_dim in (64, 80, 96, 128, 256)
      for cap in (False, True)),
]  # fmt: skip


@cache
def tool(name: str) -> Path:
    """A program that a package of NVIDIA's brings."""
    package = {"ptxas": "nvidia-cuda-nvcc", "nvdisasm": "nvidia-cuda-nvdisasm"}[name]
    return next(Path(str(path.locate())) for path in files(package) or [] if path.name == name)


def assemble(kernel: CompiledKernel, architecture: str, folder: Path) -> tuple[str, Path]:
    """ptxas's report, and the machine code's file."""
    source, target = folder / "kernel.ptx", folder / f"{architecture}.cubin"
    source.write_text(kernel.ptx, encoding="utf-8")
    command: list[str | Path] = [tool("ptxas"), "-v", f"-arch={architecture}", source, "-o", target]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr, target


def opcodes(machine_code: Path) -> Counter[str]:
    """How often each instruction occurs, with its modifiers."""
    command: list[str | Path] = [tool("nvdisasm"), "-c", machine_code]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Counter(re.findall(r"^\s+/\*\w+\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]+)", listing, re.MULTILINE))


def check_resources(report: str, max_registers: int) -> None:
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in report
    registers = re.search(r"Used (\d+) registers", report)
    assert registers
    assert int(registers[1]) <= max_registers


def check_accesses(name: str, counts: Counter[str]) -> None:
    """No local memory, and pages only in accesses of 128 bits."""
    assert counts
    assert not [opcode for opcode in counts if opcode.startswith(("LDL", "STL"))]
    wide = {opcode.split(".")[0] for opcode in counts if ".128" in opcode}
    narrow = {opcode.split(".")[0] for opcode in counts if opcode.startswith(("LDG", "STG")) and ".128" not in opcode}
    kind = name.split()[0]
    wanted = {"decode": {"LDG"}, "extend": {"LDGSTS"}, "write": {"LDG", "STG"}}.get(kind, {"LDG", "STG"})
    if kind != "combine":  # which reads no pages
        assert wanted <= wide
    if kind not in ("decode", "extend", "combine"):
        assert "STG" not in narrow  # decode and extend write outputs, a word at a time
    if kind == "extend":
        assert [opcode for opcode in counts if opcode.startswith("HMMA.16816.F32")]
        assert [opcode for opcode in counts if opcode.startswith("LDSM")]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", QUICK)
def test_machine_code(name: str, architecture: str, tmp_path: Path) -> None:
    make, max_registers = QUICK[name]
    report, machine_code = assemble(make(), architecture, tmp_path)
    check_resources(report, max_registers)
    check_accesses(name, opcodes(machine_code))


@pytest.mark.full
@pytest.mark.parametrize("variant", FULL, ids=lambda variant: " ".join(map(str, variant)))
def test_every_attention_kernel(variant: tuple[str, str, int, int, bool], tmp_path: Path) -> None:
    name, kind, head_dim, heads, cap = variant
    kernel = (
        compiling.decode_kernel(kind, head_dim, heads, cap)
        if name == "decode"
        else compiling.extend_kernel(kind, head_dim, cap)
    )
    assert kernel.shared_bytes <= MAX_SHARED_BYTES
    for architecture in ARCHITECTURES:
        report, machine_code = assemble(kernel, architecture, tmp_path)
        check_resources(report, 255)
        check_accesses(name, opcodes(machine_code))
