"""`fastest_rows_at_once`: which of the product kernels suits this processor, measured when a model is loaded.

All of them give the same bits, so the choice may differ from start to start. Library kernels are no candidates: they
are slower, but for one that lets the rows of a batch share a scale, and none gives a row the same bits in every batch
(see ``docs/log.md``).
"""

from __future__ import annotations

import time
from functools import cache

import numpy as np

from chatserve.models.cpu.entry_points import multiply_entry
from chatserve.models.cpu.products import BLOCK_GROUP_BYTES, BLOCK_ROWS, ROWS_AT_ONCE, Form
from chatserve.models.cpu.tiles import GROUP_BYTES, TILE_ROWS, Kind

_NUM_GROUPS = 256
"""So many take 10 us and more, which makes what calling the kernel from Python costs small, and fit the caches."""
_NUM_ROUNDS = 100


@cache
def fastest_rows_at_once(kind: Kind, form: Form) -> int:
    """One of ROWS_AT_ONCE; the candidates take turns, and the shortest time of each counts."""
    candidates = [at_once for at_once in ROWS_AT_ONCE if at_once > 1]
    seconds = dict.fromkeys(candidates, float("inf"))
    weights = np.zeros(_NUM_GROUPS * GROUP_BYTES[kind], np.uint8)
    x = np.zeros(_NUM_GROUPS * BLOCK_GROUP_BYTES[form], np.uint8)
    sums = np.zeros((BLOCK_ROWS, TILE_ROWS), np.float32)
    for _ in range(_NUM_ROUNDS):
        for at_once in candidates:
            started = time.perf_counter()
            multiply_entry.ctypes(
                kind, form, weights.ctypes.data, x.ctypes.data, sums.ctypes.data, sums.strides[0], sums.ctypes.data,
                sums.strides[0], _NUM_GROUPS, BLOCK_ROWS, at_once,
            )  # fmt: skip
            seconds[at_once] = min(seconds[at_once], time.perf_counter() - started)
    return min(candidates, key=seconds.__getitem__)
