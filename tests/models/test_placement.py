"""Where a model runs and how much memory its pages get there; a stand-in tells what torch would tell of a device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from chatserve.config import Config
from chatserve.engine.building import num_blocks_for
from chatserve.errors import ModelLoadError
from chatserve.models.page_memory import free_host_memory, page_memory
from chatserve.models.placement import choose_placement
from chatserve.models.runner import ModelInfo

GIB = 1 << 30
INFO = ModelInfo("m", vocab_size=9, max_model_len=1 << 20, kv_bytes_per_token=GIB // 160, is_batch_invariant=True,
                 description="", device="cuda:0")  # fmt: skip


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with a CUDA device of 80 GiB, 60 of them free, and the packages and the driver that kernels need."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (60 * GIB, 80 * GIB))
    monkeypatch.setattr("chatserve.models.placement.check_cuda", lambda device: None)
    return monkeypatch


def without_packages(device: torch.device) -> None:
    raise ModelLoadError("the CUDA kernels need packages that are not there")


@pytest.mark.usefixtures("device")
def test_a_device_that_can_be_used_is_used() -> None:
    assert choose_placement(Config()) == (torch.device("cuda:0"), torch.bfloat16)
    assert choose_placement(Config(device="cuda", dtype="float16")) == (torch.device("cuda:0"), torch.float16)
    assert choose_placement(Config(device="cpu")) == (torch.device("cpu"), torch.float32)


def test_auto_passes_over_a_device_that_cannot_be_used(
    device: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device.setattr("chatserve.models.placement.check_cuda", without_packages)
    assert choose_placement(Config()) == (torch.device("cpu"), torch.float32)
    assert "need packages that are not there" in caplog.text
    with pytest.raises(ModelLoadError, match="need packages"):
        choose_placement(Config(device="cuda"))


def test_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert choose_placement(Config()).device.type == "cpu"
    with pytest.raises(ModelLoadError, match="cannot run on cuda: "):
        choose_placement(Config(device="cuda"))


@pytest.mark.usefixtures("device")
def test_the_pool_is_sized_by_the_memory_where_its_pages_lie() -> None:
    on_device = Config(block_size=16)  # blocks of 0.1 GiB
    assert num_blocks_for(INFO, on_device) == 540
    assert num_blocks_for(INFO, Config(block_size=16, kv_memory=2.0)) == 20
    assert num_blocks_for(replace(INFO, device="cpu"), on_device) <= 40


def test_memory_of_the_host() -> None:
    memory = page_memory("cpu")
    assert 0 < memory.default <= memory.free <= memory.total
    assert free_host_memory() < memory.total
