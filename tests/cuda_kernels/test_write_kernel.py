"""Writing new K and V into their slots."""

from __future__ import annotations

import pytest
import torch

from cuda_kernels.compiled import CompiledKernel
from cuda_kernels.element_type import BFLOAT16, FLOAT16
from cuda_kernels.write import compile_write
from tests.cuda_kernels.compiling import write_kernel
from tests.ptx.launcher import PtxLauncher

NUM_BLOCKS, NUM_KV_HEADS = 7, 3


def run_write(
    kernel_kind: tuple[str, str, int], block_size: int, *, is_strided: bool, kernel: CompiledKernel | None = None
) -> None:
    """Write nine tokens, two of them nowhere, and compare with plain indexing; all else must stay as it was."""
    source, kind, head_dim = kernel_kind
    generator = torch.Generator().manual_seed(head_dim + block_size)
    source_type, page_type = getattr(torch, source), getattr(torch, kind)
    fused = torch.randn(9, NUM_KV_HEADS, 2 * head_dim, generator=generator).to(source_type)
    keys, values = fused[..., :head_dim], fused[..., head_dim:]
    if not is_strided:
        keys, values = keys.contiguous(), values.contiguous()
    slots = torch.randperm(NUM_BLOCKS * block_size, generator=generator)[:9].to(torch.int32)
    slots[3] = slots[8] = -1
    pages = torch.full((2, NUM_BLOCKS, NUM_KV_HEADS, block_size, head_dim), 5.0, dtype=page_type)
    expected = pages.clone()
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[0, slot // block_size, :, slot % block_size] = keys[token].to(page_type)
            expected[1, slot // block_size, :, slot % block_size] = values[token].to(page_type)
    per_chunk = 16 // fused.itemsize
    PtxLauncher().launch(
        kernel or write_kernel(source, kind, head_dim), (9, 1, 1), keys, values,
        keys.stride(0) // per_chunk, keys.stride(1) // per_chunk, values.stride(0) // per_chunk,
        values.stride(1) // per_chunk, pages[0], pages[1], slots, NUM_KV_HEADS, block_size.bit_length() - 1,
    )  # fmt: skip
    assert torch.equal(pages, expected)


@pytest.mark.parametrize("is_strided", [False, True], ids=["contiguous", "strided"])
@pytest.mark.parametrize("block_size", [8, 128])
@pytest.mark.parametrize(
    "kind", [("float32", "bfloat16", 64), ("float32", "float16", 64), ("bfloat16", "bfloat16", 80)], ids=str
)
def test_each_token_lands_in_its_slot(kind: tuple[str, str, int], block_size: int, is_strided: bool) -> None:
    run_write(kind, block_size, is_strided=is_strided)


@pytest.mark.full
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16"])
def test_every_format_and_head_size(source: str, head_dim: int) -> None:
    for block_size in (8, 16, 32, 64, 128):
        run_write((source, source, head_dim), block_size, is_strided=block_size == 16)


def test_numbers_halfway_between_two_are_rounded_to_even() -> None:
    """float32 numbers around every tie: torch rounds to nearest even as well, and its answer is known to be right."""
    ties = torch.arange(0x3F80_8000, 0x3F80_8000 + (1 << 17) * 64, 1 << 16, dtype=torch.int64)
    around = torch.cat([ties - 1, ties, ties + 1])[:384].to(torch.int32).view(torch.float32)
    numbers = around.reshape(2, 3, 64).contiguous()
    pages = torch.zeros(2, 1, 3, 8, 64, dtype=torch.bfloat16)
    PtxLauncher().launch(
        write_kernel("float32", "bfloat16", 64), (2, 1, 1), numbers, numbers, 48, 16, 48, 16, pages[0], pages[1],
        torch.tensor([2, 5], dtype=torch.int32), 3, 3,
    )  # fmt: skip
    assert torch.equal(pages[0, 0, :, [2, 5]].swapaxes(0, 1), numbers.to(torch.bfloat16))


def test_two_16_bit_formats_are_not_read_as_each_other() -> None:
    """Case i5: both have two bytes."""
    with pytest.raises(ValueError, match="bfloat16 is not written into pages of float16"):
        compile_write(BFLOAT16, FLOAT16, 64)
