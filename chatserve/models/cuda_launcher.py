"""`Launcher`: runs compiled kernels and orders them with copies; `CudaLauncher` does so on a CUDA device.

The PTX that numba compiled is linked for the device by nvJitLink and launched through the CUDA driver, always on
torch's current stream, so that a kernel takes its place among torch's own and in a captured graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import torch

from chatserve.errors import ModelLoadError

if TYPE_CHECKING:
    from cuda_kernels.compiled import CompiledKernel

_PARAMETER_TYPES = {"u64": ctypes.c_void_p, "u32": ctypes.c_int32, "f32": ctypes.c_float}
_OLDEST_DRIVER = 13000
"""CUDA version, 1000 major + 10 minor, that the driver must support."""
_OLDEST_CAPABILITY = (8, 0)
_NEEDS_PACKAGES = (
    "the CUDA kernels need packages that are not there: pip install 'chatserve[cuda]', or run with --device cpu"
)


class Launcher(Protocol):
    """Where kernels run. Calls come from one thread at a time."""

    def load(self, kernel: CompiledKernel) -> None:
        """Make a kernel ready. Raises ModelLoadError when that fails."""

    def launch(
        self, kernel: CompiledKernel, grid: tuple[int, int, int], *arguments: torch.Tensor | int | float
    ) -> None:
        """Run a loaded kernel after what was launched before; returns at once. Tensors are passed by address."""

    def aside(self) -> AbstractContextManager[None]:
        """Torch's copies inside run beside later launches, after all that was launched before."""

    def await_aside(self) -> None:
        """What is launched next waits for the copies made aside."""

    def capture(self, function: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        """Record the launches of `function`: returns what runs them again, and the tensor that they fill each time."""


class CudaLauncher:
    """A `Launcher` on a CUDA device. Raises ModelLoadError, one line that says what to install, when it cannot be."""

    def __init__(self, device: torch.device) -> None:
        self._driver = check_cuda(device)
        capability = torch.cuda.get_device_capability(device)
        torch.cuda.set_device(device)
        torch.cuda.current_stream().synchronize()  # makes the device's context current in this thread
        self._architecture = f"sm_{capability[0]}{capability[1]}"
        self._functions: dict[str, tuple[Any, tuple[Any, ...]]] = {}
        self._side = torch.cuda.Stream(device)
        self._graph_pool: Any = None

    def load(self, kernel: CompiledKernel) -> None:
        if kernel.name in self._functions:
            return
        image = link(kernel, self._architecture)
        module = self._checked(kernel.name, self._driver.cuModuleLoadData(image))
        function = self._checked(kernel.name, self._driver.cuModuleGetFunction(module, kernel.entry.encode()))
        self._functions[kernel.name] = function, tuple(_PARAMETER_TYPES[kind] for kind in kernel.parameters)

    def launch(
        self, kernel: CompiledKernel, grid: tuple[int, int, int], *arguments: torch.Tensor | int | float
    ) -> None:
        function, kinds = self._functions[kernel.name]
        values = tuple(given.data_ptr() if isinstance(given, torch.Tensor) else given for given in arguments)
        stream = torch.cuda.current_stream().cuda_stream
        (status,) = self._driver.cuLaunchKernel(
            function, *grid, kernel.num_threads, 1, 1, 0, stream, (values, kinds), 0
        )
        if status:
            raise RuntimeError(f"launching the kernel {kernel.name} failed: {status.name}")

    @contextmanager
    def aside(self) -> Iterator[None]:
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            yield

    def await_aside(self) -> None:
        torch.cuda.current_stream().wait_stream(self._side)

    def capture(self, function: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            function()  # libraries allocate what they need before the capture
        self.await_aside()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._graph_pool):
            filled = function()
        self._graph_pool = graph.pool()
        return graph.replay, filled

    def _checked(self, name: str, result: tuple[Any, ...]) -> Any:
        if result[0]:
            raise ModelLoadError(f"loading the CUDA kernel {name} failed: {result[0].name}; {_describe(self._driver)}")
        return result[1]


def link(kernel: CompiledKernel, architecture: str) -> bytes:
    """A kernel's machine code for `architecture`, such as "sm_90". Raises ModelLoadError, naming the toolkit."""
    from cuda.bindings import nvjitlink

    ptx = kernel.ptx.encode()
    try:
        handle = nvjitlink.create(1, [f"-arch={architecture}"])
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, ptx, len(ptx), kernel.name)
        nvjitlink.complete(handle)
        image = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, image)
        nvjitlink.destroy(handle)
    except (nvjitlink.nvJitLinkError, RuntimeError) as error:
        toolkit = ".".join(map(str, nvjitlink.version()))
        raise ModelLoadError(
            f"linking the CUDA kernel {kernel.name} for {architecture} failed with nvJitLink {toolkit}: {error}; "
            "install matching versions with: pip install 'chatserve[cuda]'"
        ) from error
    return bytes(image)


def check_cuda(device: torch.device) -> Any:
    """The CUDA driver's module. Raises ModelLoadError, one line that says what to install, when kernels cannot run."""
    driver = _import_driver()
    _check_driver(driver)
    capability = torch.cuda.get_device_capability(device)
    if capability < _OLDEST_CAPABILITY:
        raise ModelLoadError(
            f"{torch.cuda.get_device_name(device)} has compute capability {capability[0]}.{capability[1]}, "
            "the CUDA kernels need 8.0 or newer; run with --device cpu"
        )
    return driver


def _import_driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise ModelLoadError(_NEEDS_PACKAGES) from error
    if find_spec("numba_cuda") is None:
        raise ModelLoadError(_NEEDS_PACKAGES)
    return driver


def _check_driver(driver: Any) -> None:
    try:
        status = driver.cuInit(0)[0]
    except RuntimeError as error:  # the driver's library is not there
        raise ModelLoadError("no NVIDIA driver was found; install one for CUDA 13 (580 or newer)") from error
    if status:
        raise ModelLoadError(f"the NVIDIA driver does not start: {status.name}; {_describe(driver)}")
    if driver.cuDriverGetVersion()[1] < _OLDEST_DRIVER:
        raise ModelLoadError(_describe(driver))


def _describe(driver: Any) -> str:
    version = driver.cuDriverGetVersion()[1]
    supported = f"the NVIDIA driver supports CUDA {version // 1000}.{version % 1000 // 10}"
    return f"{supported}, the kernels need CUDA 13 (driver 580 or newer)"
