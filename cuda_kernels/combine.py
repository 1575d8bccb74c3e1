"""The last step of attention split over the context: weigh and add the splits of every row."""

from __future__ import annotations

from typing import Any

from numba import cuda
from numba.cuda import types
from numba.cuda.types import float32, int32

from cuda_kernels.compiled import CompiledKernel, compile_kernel
from cuda_kernels.element_type import ElementType
from cuda_kernels.intrinsics import FLOATS, INTS, WORDS, exp2

_LOWEST = float32(-1e30)
_ONE = float32(1)


def compile_combine(element: ElementType, head_dim: int) -> CompiledKernel:
    """The kernel that joins what `compile_decode` left; grid (rows, query heads).

    Arguments: partial float32[rows, query heads, splits, head_dim], statistics float32[rows, query heads, splits, 2]
    (largest score in base 2, sum of the weights relative to it), rows int32[rows, 4] as given to the decode kernel,
    out [tokens, query heads, head_dim], int32 splits.
    """
    function = _combine_function(element, head_dim)
    signature = types.void(FLOATS, FLOATS, INTS, WORDS, types.int32)
    num_threads = -(-head_dim // element.per_word // 32) * 32
    return compile_kernel(f"combine {element.name} {head_dim}", function, signature, num_threads)


def _combine_function(element: ElementType, head_dim: int) -> Any:
    pack, per_word = element.pack, element.per_word
    words_per_head = head_dim // per_word

    def combine(partial: Any, statistics: Any, rows: Any, out: Any, num_splits: Any) -> None:
        row, head = int32(cuda.blockIdx.x), int32(cuda.blockIdx.y)
        num_heads = int32(cuda.gridDim.y)
        word = int32(cuda.threadIdx.x)
        if word >= words_per_head:
            return
        first = int32(int32(row * num_heads + head) * num_splits)
        top = _LOWEST
        for split in range(num_splits):
            top = max(top, statistics[2 * (first + split)])
        whole, low, high = float32(0), float32(0), float32(0)
        for split in range(num_splits):
            piece = first + split
            total = statistics[2 * piece + 1]
            if total > 0:  # a split without tokens has left nothing
                weight = exp2(float32(statistics[2 * piece] - top))
                whole += total * weight
                low += partial[piece * head_dim + word * per_word] * weight
                high += partial[piece * head_dim + word * per_word + per_word - 1] * weight
        inverse = float32(_ONE / whole) if whole > 0 else float32(0)
        token = rows[4 * row]
        out[(token * num_heads + head) * words_per_head + word] = pack(float32(low * inverse), float32(high * inverse))

    return combine
