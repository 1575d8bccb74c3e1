"""Moves of whole blocks, all layers, K and V, in one launch: copy-on-write, and gather and scatter for swapping.

Pages of the device are [planes, blocks, chunks of a block], where a plane is K or V of one layer; a staging buffer is
[entries, planes, chunks of a block], so that a block of all layers lies together for the copy to or from the host.
"""

from __future__ import annotations

from typing import Any

from numba import cuda
from numba.cuda import types
from numba.cuda.types import int32, int64

from cuda_kernels.compiled import CompiledKernel, compile_kernel
from cuda_kernels.intrinsics import INTS, WORDS, load_chunk, store_chunk

NUM_THREADS = 128


def compile_copy() -> CompiledKernel:
    """Copy blocks within the pages; grid (pairs, planes). No destination may be a source or named twice.

    Arguments: pages, int32 number of blocks, int32 chunks of a block in a plane, pairs int32[pairs, 2] of (source,
    destination).
    """
    signature = types.void(WORDS, types.int32, types.int32, INTS)
    return compile_kernel("copy blocks", _copy, signature, NUM_THREADS)


def compile_gather() -> CompiledKernel:
    """Copy blocks from the pages to a staging buffer; grid (blocks to move, planes).

    Arguments: pages, int32 number of blocks, int32 chunks of a block in a plane, blocks int32[moved], staging: entry i
    holds block i of the list.
    """
    signature = types.void(WORDS, types.int32, types.int32, INTS, WORDS)
    return compile_kernel("gather blocks", _gather, signature, NUM_THREADS)


def compile_scatter() -> CompiledKernel:
    """Copy blocks from a staging buffer to the pages: the way back of `compile_gather`, with the same arguments."""
    signature = types.void(WORDS, types.int32, types.int32, INTS, WORDS)
    return compile_kernel("scatter blocks", _scatter, signature, NUM_THREADS)


@cuda.jit(device=True, inline="always")
def _move(origin: Any, source: Any, target_words: Any, target: Any, chunks: Any) -> None:
    """Copy `chunks` chunks, all threads of the block together. Offsets exceed 32 bits in large pools."""
    chunk = int64(cuda.threadIdx.x)
    while chunk < chunks:
        store_chunk(target_words, target * chunks + chunk, load_chunk(origin, source * chunks + chunk))
        chunk += NUM_THREADS


def _copy(pages: Any, num_blocks: Any, chunks: Any, pairs: Any) -> None:
    pair, plane_start = int32(cuda.blockIdx.x), int64(cuda.blockIdx.y) * num_blocks
    _move(pages, plane_start + pairs[2 * pair], pages, plane_start + pairs[2 * pair + 1], chunks)


def _gather(pages: Any, num_blocks: Any, chunks: Any, blocks: Any, staging: Any) -> None:
    entry, plane = int64(cuda.blockIdx.x), int64(cuda.blockIdx.y)
    _move(pages, plane * num_blocks + blocks[entry], staging, entry * int64(cuda.gridDim.y) + plane, chunks)


def _scatter(pages: Any, num_blocks: Any, chunks: Any, blocks: Any, staging: Any) -> None:
    entry, plane = int64(cuda.blockIdx.x), int64(cuda.blockIdx.y)
    _move(staging, entry * int64(cuda.gridDim.y) + plane, pages, plane * num_blocks + blocks[entry], chunks)
