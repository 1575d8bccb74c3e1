"""Kernels compiled once for all tests of a session."""

from __future__ import annotations

from functools import lru_cache

from cuda_kernels.blocks import compile_copy, compile_gather, compile_scatter
from cuda_kernels.combine import compile_combine
from cuda_kernels.compiled import CompiledKernel
from cuda_kernels.decode import DecodeVariant, compile_decode
from cuda_kernels.element_type import ELEMENT_TYPES
from cuda_kernels.extend import compile_extend
from cuda_kernels.write import compile_write


@lru_cache
def decode_kernel(kind: str, head_dim: int, num_heads: int, has_softcap: bool) -> CompiledKernel:
    return compile_decode(DecodeVariant(ELEMENT_TYPES[kind], head_dim, num_heads, has_softcap))


@lru_cache
def combine_kernel(kind: str, head_dim: int) -> CompiledKernel:
    return compile_combine(ELEMENT_TYPES[kind], head_dim)


@lru_cache
def extend_kernel(kind: str, head_dim: int, has_softcap: bool) -> CompiledKernel:
    return compile_extend(ELEMENT_TYPES[kind], head_dim, has_softcap=has_softcap)


@lru_cache
def write_kernel(source: str, kind: str, head_dim: int) -> CompiledKernel:
    return compile_write(ELEMENT_TYPES[source], ELEMENT_TYPES[kind], head_dim)


@lru_cache
def block_kernel(move: str) -> CompiledKernel:
    return {"copy": compile_copy, "gather": compile_gather, "scatter": compile_scatter}[move]()
