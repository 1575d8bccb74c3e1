"""What `CudaLauncher` asks of the driver and of torch, seen by stand-ins for both."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chatserve.errors import ModelLoadError
from chatserve.models.cuda_launcher import CudaLauncher
from tests.cuda_kernels.compiling import block_kernel


class Driver:
    """Records modules and launches; `status` answers loads and launches: 0, or an error."""

    def __init__(self) -> None:
        self.images: list[bytes] = []
        self.launches: list[tuple[Any, ...]] = []
        self.status: Any = 0

    def cuInit(self, flags: int) -> tuple[int]:  # noqa: N802  the driver's names
        return (0,)

    def cuDriverGetVersion(self) -> tuple[int, int]:  # noqa: N802
        return 0, 13000

    def cuModuleLoadData(self, image: bytes) -> tuple[Any, str]:  # noqa: N802
        self.images.append(image)
        return self.status, "module"

    def cuModuleGetFunction(self, module: str, name: bytes) -> tuple[int, str]:  # noqa: N802
        return 0, f"{module} {name.decode()}"

    def cuLaunchKernel(self, *arguments: Any) -> tuple[Any]:  # noqa: N802
        self.launches.append(arguments)
        return (self.status,)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    stream = SimpleNamespace(cuda_stream=77, synchronize=lambda: None)
    monkeypatch.setattr("chatserve.models.cuda_launcher._import_driver", lambda: made)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    return made


def test_a_launch_takes_torchs_stream_and_the_kernels_parameter_types(driver: Driver) -> None:
    launcher, kernel = CudaLauncher(torch.device("cuda:0")), block_kernel("copy")
    launcher.load(kernel)
    launcher.load(kernel)
    assert [image[:4] for image in driver.images] == [b"\x7fELF"]
    pages, pairs = torch.zeros(8), torch.zeros(2, dtype=torch.int32)
    launcher.launch(kernel, (3, 4, 1), pages, 9, 2, pairs)
    types = (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)
    values = (pages.data_ptr(), 9, 2, pairs.data_ptr())
    assert driver.launches == [("module copy_blocks", 3, 4, 1, 128, 1, 1, 0, 77, (values, types), 0)]


def test_a_driver_that_refuses_a_kernel_is_told_at_the_start(driver: Driver) -> None:
    """Case i3: the driver's answer, its version, and what is needed, in one line."""
    driver.status = SimpleNamespace(name="CUDA_ERROR_NO_BINARY_FOR_GPU")
    with pytest.raises(ModelLoadError) as caught:
        CudaLauncher(torch.device("cuda:0")).load(block_kernel("copy"))
    assert str(caught.value) == (
        "loading the CUDA kernel copy blocks failed: CUDA_ERROR_NO_BINARY_FOR_GPU; "
        "the NVIDIA driver supports CUDA 13.0, the kernels need CUDA 13 (driver 580 or newer)"
    )


def test_a_failed_launch_is_an_error(driver: Driver) -> None:
    launcher, kernel = CudaLauncher(torch.device("cuda:0")), block_kernel("copy")
    launcher.load(kernel)
    driver.status = SimpleNamespace(name="CUDA_ERROR_INVALID_VALUE")
    with pytest.raises(RuntimeError, match="launching the kernel copy blocks failed: CUDA_ERROR_INVALID_VALUE"):
        launcher.launch(kernel, (1, 1, 1), torch.zeros(4), 1, 1, torch.zeros(2, dtype=torch.int32))


def test_an_old_device_is_refused(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(ModelLoadError, match="Tesla T4 has compute capability 7.5, the CUDA kernels need 8.0"):
        CudaLauncher(torch.device("cuda:0"))
