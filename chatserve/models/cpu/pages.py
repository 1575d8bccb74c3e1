"""`Pages`: KV pages in main memory, one buffer for all layers, and their copies and swaps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chatserve.errors import ModelLoadError
from chatserve.models.batch import Batch, Int32Array
from chatserve.models.cpu.huge_pages import huge_zeros
from chatserve.models.page_memory import free_host_memory

_GIB = 1 << 30
_Numbers = NDArray[np.floating[Any]]


class Pages:
    """[layers, K and V, num_blocks, numbers of a block in a layer] and a host pool for swapping of the same form.

    Within a block keys are [KV head, head_dim, slot], values [KV head, slot, head_dim].
    Raises ModelLoadError when the memory is not there.
    """

    def __init__(
        self, num_layers: int, num_blocks: int, num_host_blocks: int, block_numbers: int, dtype: np.dtype[Any]
    ) -> None:
        _check_memory((num_blocks + num_host_blocks) * num_layers * 2 * block_numbers * dtype.itemsize)
        self.pool: _Numbers = huge_zeros((num_layers, 2, num_blocks, block_numbers), dtype)
        self._host: _Numbers = np.zeros((num_layers, 2, num_host_blocks, block_numbers), dtype)

    def move_blocks(self, batch: Batch) -> None:
        """Swap out, swap in, copy: in this order, and each list as if pair by pair."""
        for pairs, source, target in (
            (batch.swap_out, self.pool, self._host),
            (batch.swap_in, self._host, self.pool),
            (batch.copies, self.pool, self.pool),
        ):
            if len(pairs):
                _move(source, target, pairs)


def _move(source: _Numbers, target: _Numbers, pairs: Int32Array) -> None:
    if source is target and len(np.intersect1d(pairs[:, 0], pairs[:, 1])):
        for pair in range(len(pairs)):  # a later pair may read what an earlier one has written
            _move_at_once(source, target, pairs[pair : pair + 1])
    else:
        _move_at_once(source, target, pairs)


def _move_at_once(source: _Numbers, target: _Numbers, pairs: NDArray[np.int32]) -> None:
    for old, new in zip(source.reshape(-1, *source.shape[2:]), target.reshape(-1, *target.shape[2:]), strict=True):
        new[pairs[:, 1]] = old[pairs[:, 0]]


def _check_memory(num_bytes: int) -> None:
    """Refuse pages that cannot be there: Linux hands out zeroed memory it does not have and kills the process later."""
    available = free_host_memory()
    if num_bytes > available:
        raise ModelLoadError(
            f"the KV pages need {num_bytes / _GIB:.1f} GiB, {available / _GIB:.1f} GiB of memory are free"
        )
