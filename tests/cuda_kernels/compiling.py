"""Kernels compiled once for all tests, by way of the product's cache of compiled kernels."""

from __future__ import annotations

from chatserve.models.cuda_kernel_set import cached_kernel
from cuda_kernels.blocks import compile_copy, compile_gather, compile_scatter
from cuda_kernels.combine import compile_combine
from cuda_kernels.compiled import CompiledKernel
from cuda_kernels.decode import DecodeVariant, compile_decode
from cuda_kernels.element_type import ELEMENT_TYPES
from cuda_kernels.extend import compile_extend
from cuda_kernels.write import compile_write


def decode_kernel(kind: str, head_dim: int, num_heads: int, has_softcap: bool) -> CompiledKernel:
    variant = DecodeVariant(ELEMENT_TYPES[kind], head_dim, num_heads, has_softcap)
    return cached_kernel(f"decode {kind} {head_dim} {num_heads} {has_softcap}", lambda: compile_decode(variant))


def combine_kernel(kind: str, head_dim: int) -> CompiledKernel:
    return cached_kernel(f"combine {kind} {head_dim}", lambda: compile_combine(ELEMENT_TYPES[kind], head_dim))


def extend_kernel(kind: str, head_dim: int, has_softcap: bool) -> CompiledKernel:
    element = ELEMENT_TYPES[kind]
    name = f"extend {kind} {head_dim} {has_softcap}"
    return cached_kernel(name, lambda: compile_extend(element, head_dim, has_softcap=has_softcap))


def write_kernel(source: str, kind: str, head_dim: int) -> CompiledKernel:
    elements = ELEMENT_TYPES[source], ELEMENT_TYPES[kind]
    return cached_kernel(f"write {source} {kind} {head_dim}", lambda: compile_write(*elements, head_dim))


def block_kernel(move: str) -> CompiledKernel:
    return cached_kernel(move, {"copy": compile_copy, "gather": compile_gather, "scatter": compile_scatter}[move])
