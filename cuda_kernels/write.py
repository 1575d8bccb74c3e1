"""Reshape and block write: the new K and V of a step into their slots, in one launch a layer."""

from __future__ import annotations

from typing import Any

from numba import cuda
from numba.cuda import types
from numba.cuda.types import int32

from cuda_kernels.compiled import CompiledKernel, compile_kernel
from cuda_kernels.element_type import ElementType
from cuda_kernels.intrinsics import INTS, WORDS, load_chunk_if, store_chunk

NUM_THREADS = 128


def compile_write(source: ElementType, element: ElementType, head_dim: int) -> CompiledKernel:
    """The kernel that writes K and V of format `source` into pages of format `element`; grid (tokens,).

    Arguments: keys and values [tokens, KV heads, head_dim], then the strides of both in chunks of 16 bytes: int32 of a
    key token, a key head, a value token, a value head; key pages and value pages [block, KV head, slot, head_dim];
    slots int32[tokens], ``block * block_size + offset`` or -1 (not written); int32 KV heads, int32 log2 of the block
    size. Raises ValueError unless the formats are equal or float32 is rounded to 16 bits.
    """
    if source != element and source.num_bytes != 4:
        raise ValueError(f"{source.name} is not written into pages of {element.name}")
    function = _write_function(source, element, head_dim)
    strides = (types.int32,) * 4
    signature = types.void(WORDS, WORDS, *strides, WORDS, WORDS, INTS, types.int32, types.int32)
    name = f"write {source.name} to {element.name} {head_dim}"
    return compile_kernel(name, function, signature, NUM_THREADS)


def _write_function(source: ElementType, element: ElementType, head_dim: int) -> Any:
    num_chunks = head_dim // element.per_chunk
    is_rounded = source != element
    unpack, pack = source.unpack, element.pack

    def write(
        keys: Any, values: Any, key_token: Any, key_head: Any, value_token: Any, value_head: Any, key_pages: Any,
        value_pages: Any, slots: Any, num_kv_heads: Any, block_shift: Any,
    ) -> None:  # fmt: skip
        token = int32(cuda.blockIdx.x)
        slot = slots[token]
        if slot < 0:
            return
        block = slot >> block_shift
        offset = int32(slot - int32(block << block_shift))
        per_side = int32(num_kv_heads * num_chunks)
        index = int32(cuda.threadIdx.x)
        while index < 2 * per_side:
            is_key = index < per_side
            within = index if is_key else int32(index - per_side)
            head = int32(within // num_chunks)
            chunk = int32(within - head * num_chunks)
            target = int32(
                int32(int32(int32(block * num_kv_heads + head) << block_shift) + offset) * num_chunks + chunk
            )
            source_row = int32(
                token * (key_token if is_key else value_token) + head * (key_head if is_key else value_head)
            )
            origin = keys if is_key else values
            if is_rounded:
                first = int32(source_row + 2 * chunk)
                low, high = unpack(load_chunk_if(origin, first, True)), unpack(load_chunk_if(origin, first + 1, True))
                words = (pack(low[0], low[1]), pack(low[2], low[3]), pack(high[0], high[1]), pack(high[2], high[3]))
            else:
                words = load_chunk_if(origin, int32(source_row + chunk), True)
            store_chunk(key_pages if is_key else value_pages, target, words)
            index = int32(index + NUM_THREADS)

    return write
