"""`CompiledKernel`: a kernel as PTX, with what a launch has to know. Compiling needs neither a GPU nor a driver."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba import cuda

TARGET = (8, 0)
"""Oldest supported compute capability; newer devices run the same PTX."""
MAX_SHARED_BYTES = 48 * 1024
"""Static shared memory that every device gives a thread block."""


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """PTX of one kernel.

    Attributes:
        name: says what it does and for which shapes; no two kernels share one.
        entry: the symbol to launch, and what profilers show.
        ptx: text, for compute capability 8.0 and newer.
        num_threads: threads of a block, in one dimension.
        parameters: type of each parameter in the order of the arguments: "u64" (pointer), "u32" or "f32".
    """

    name: str
    entry: str
    ptx: str
    num_threads: int
    parameters: tuple[str, ...]

    @property
    def shared_bytes(self) -> int:
        """Static shared memory of a block."""
        sizes = re.findall(r"\.shared(?: \.align \d+)? \.b8 \w+\[(\d+)\]", self.ptx)
        return sum(int(size) for size in sizes)


def compile_kernel(name: str, function: Callable[..., None], signature: Any, num_threads: int) -> CompiledKernel:
    """Compile `function` to PTX. Raises ValueError when it takes more shared memory than every device has."""
    ptx, _ = cuda.compile(function, signature, cc=TARGET, output="ptx", abi="numba", device=False, fastmath=True)
    header = re.search(r"\.visible \.entry (\w+)\((.*?)\)", ptx, re.DOTALL)
    assert header, "the compiler writes one entry"
    parameters = tuple(re.findall(r"\.param \.(\w+)", header[2]))
    entry = re.sub(r"\W+", "_", name)  # numba's own counts what the process has compiled before
    kernel = CompiledKernel(name, entry, ptx.replace(header[1], entry), num_threads, parameters)
    if kernel.shared_bytes > MAX_SHARED_BYTES:
        raise ValueError(f"{name}: {kernel.shared_bytes} bytes of shared memory, {MAX_SHARED_BYTES} at most")
    return kernel
