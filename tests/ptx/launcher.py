"""`PtxLauncher`: launches compiled kernels in the interpreter, on CPU tensors, as the CUDA driver would on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from cuda_kernels.compiled import CompiledKernel
from tests.ptx.global_memory import GlobalMemory
from tests.ptx.machine import run
from tests.ptx.program import Program, parse


class PtxLauncher:
    """A `Launcher` that runs each launch to its end. A kernel reaches only the tensors it is given, in their bounds.

    Attributes:
        launched: the kernels' names in order, for tests to look at and clear.
    """

    def __init__(self) -> None:
        self.launched: list[str] = []

    def load(self, kernel: CompiledKernel) -> None:
        """Reading the text is all there is to do."""
        _parsed(kernel.ptx)

    def launch(
        self, kernel: CompiledKernel, grid: tuple[int, int, int], *arguments: torch.Tensor | int | float
    ) -> None:
        """Raises KernelFault for what a GPU would punish or might not notice."""
        self.launched.append(kernel.name)
        memory = GlobalMemory()
        values = [_reach(memory, given) if isinstance(given, torch.Tensor) else given for given in arguments]
        run(_parsed(kernel.ptx), grid, kernel.num_threads, values, memory)

    @contextmanager
    def aside(self) -> Iterator[None]:
        yield

    def await_aside(self) -> None:
        """Nothing runs beside anything here."""

    def capture(self, function: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        """Like a graph, the function runs with whatever its arrays then hold, and fills the tensor it filled first."""
        filled = function()

        def replay() -> None:
            filled.copy_(function())

        return replay, filled


@lru_cache(maxsize=64)
def _parsed(ptx: str) -> Program:
    return parse(ptx)


def _reach(memory: GlobalMemory, tensor: torch.Tensor) -> int:
    if tensor.numel():
        memory.add_bytes(tensor.data_ptr(), _bytes(tensor))
    return tensor.data_ptr()


def _bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """The memory from the tensor's first to its last number, gaps of strides included."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    whole: NDArray[np.uint8] = tensor.as_strided((span,), (1,)).view(torch.uint8).numpy()
    return whole
