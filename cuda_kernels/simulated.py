"""Plain Python bodies of the intrinsics, for numba's simulator (``NUMBA_ENABLE_CUDASIM=1``).

Pointers are then one-dimensional NumPy arrays of uint32, int32 or float32. The simulator has no shuffles and no tensor
cores, so the attention kernels do not run in it; writing, combining, copying and swapping do, under any debugger.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_WORDS_PER_CHUNK = 4


def load_chunk(pointer: Any, index: int) -> tuple[Any, ...]:
    return tuple(np.uint32(word) for word in pointer[_WORDS_PER_CHUNK * index : _WORDS_PER_CHUNK * (index + 1)])


def load_chunk_if(pointer: Any, index: int, wanted: bool) -> tuple[Any, ...]:
    return load_chunk(pointer, index) if wanted else (np.uint32(0),) * _WORDS_PER_CHUNK


def store_chunk(pointer: Any, index: int, words: tuple[Any, ...]) -> None:
    for i, word in enumerate(words):
        pointer[_WORDS_PER_CHUNK * index + i] = word


def unpack_float32(words: tuple[Any, ...]) -> list[Any]:
    return list(np.array(words, np.uint32).view(np.float32))


def unpack_float16(words: tuple[Any, ...]) -> list[Any]:
    return list(np.array(words, np.uint32).view(np.float16).astype(np.float32))


def unpack_bfloat16(words: tuple[Any, ...]) -> list[Any]:
    halves = np.array(words, np.uint32).view(np.uint16).astype(np.uint32)
    return list((halves << np.uint32(16)).view(np.float32))


def pack_float32(first: Any, second: Any) -> Any:
    return np.float32(first).view(np.uint32)


def pack_float16(first: Any, second: Any) -> Any:
    return np.array([first, second], np.float16).view(np.uint32)[0]


def pack_bfloat16(first: Any, second: Any) -> Any:
    bits = np.array([first, second], np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
    return rounded.astype(np.uint16).view(np.uint32)[0]


def exp2(exponent: Any) -> Any:
    return np.exp2(np.float32(exponent))
