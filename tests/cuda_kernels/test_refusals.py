"""What cannot work is said at the start, in one line that names what to install (cases i1, i3 and i5)."""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from numba import cuda
from numba.cuda import types

from chatserve.errors import ModelLoadError
from chatserve.models.attention_shape import AttentionShape
from chatserve.models.cuda_kernel_set import is_supported
from chatserve.models.cuda_launcher import CudaLauncher, link
from cuda_kernels.compiled import compile_kernel
from cuda_kernels.intrinsics import FLOATS
from tests.cuda_kernels.compiling import block_kernel


class Status(IntEnum):
    SUCCESS = 0
    CUDA_ERROR_NO_DEVICE = 100


def driver(version: int = 13000, start: Status = Status.SUCCESS) -> Any:
    """As much of the driver's binding as is asked before anything runs."""
    return SimpleNamespace(cuInit=lambda flags: (start,), cuDriverGetVersion=lambda: (Status.SUCCESS, version))


def refusal(monkeypatch: pytest.MonkeyPatch, given: Any) -> str:
    monkeypatch.setattr("chatserve.models.cuda_launcher._import_driver", lambda: given)
    with pytest.raises(ModelLoadError) as caught:
        CudaLauncher(torch.device("cuda:0"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_more_shared_memory_than_a_device_gives_is_refused() -> None:
    """Case i1: nothing but the size tells; simulators accept it."""

    def greedy(out: Any) -> None:
        numbers = cuda.shared.array(20_000, types.float32)
        numbers[cuda.threadIdx.x] = out[cuda.threadIdx.x]
        cuda.syncthreads()
        out[cuda.threadIdx.x] = numbers[127 - cuda.threadIdx.x]

    with pytest.raises(ValueError, match="greedy: 80000 bytes of shared memory, 49152 at most"):
        compile_kernel("greedy", greedy, types.void(FLOATS), 128)


def test_a_toolkit_that_does_not_know_the_ptx() -> None:
    """Case i3."""
    kernel = block_kernel("copy")
    newer = replace(kernel, ptx=kernel.ptx.replace(".version 9.0", ".version 19.0"))
    with pytest.raises(ModelLoadError, match=r"copy blocks for sm_90 failed with nvJitLink 13\..*pip install"):
        link(newer, "sm_90")


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_the_toolkit_links_for_old_and_new_devices(architecture: str) -> None:
    assert link(block_kernel("copy"), architecture).startswith(b"\x7fELF")


def test_a_driver_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case i3."""
    text = refusal(monkeypatch, driver(version=12040))
    assert text == "the NVIDIA driver supports CUDA 12.4, the kernels need CUDA 13 (driver 580 or newer)"


def test_a_driver_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the NVIDIA driver does not start: CUDA_ERROR_NO_DEVICE" in refusal(
        monkeypatch, driver(start=Status.CUDA_ERROR_NO_DEVICE)
    )


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(flags: int) -> None:
        raise RuntimeError("libcuda.so.1 was not found")

    missing = SimpleNamespace(cuInit=fail)
    assert "no NVIDIA driver was found; install one for CUDA 13" in refusal(monkeypatch, missing)


def test_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatserve.models.cuda_launcher.find_spec", lambda name: None)
    with pytest.raises(ModelLoadError, match=r"pip install 'chatserve\[cuda\]'"):
        CudaLauncher(torch.device("cuda:0"))


def test_formats_and_head_sizes_without_kernels() -> None:
    """Case i5: a format is known by its name, never by its two bytes."""
    shape = AttentionShape(1, 4, 2, 64)
    assert all(is_supported(shape, name) for name in ("float32", "float16", "bfloat16"))
    assert not is_supported(shape, "float64")
    assert not is_supported(shape, "int16")
    assert not is_supported(replace(shape, head_dim=72), "float16")
    assert not is_supported(replace(shape, head_dim=512), "float16")
