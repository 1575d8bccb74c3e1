"""`DecodeGraphs`: steps of decodes only, captured as CUDA graphs for a ladder of batch sizes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from chatserve.models.batch import Batch
from chatserve.models.cuda_step import Step
from chatserve.models.cuda_upload import upload

if TYPE_CHECKING:
    from chatserve.models.cuda_pages import CudaPages

logger = logging.getLogger(__name__)

GRAPH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""A step takes the next larger size; rows to spare see nothing and write nowhere."""

Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(token ids, positions, rows wanted), each int64[B], to logits [1, B, vocabulary]."""


class _Graph(NamedTuple):
    replay: Callable[[], None]
    logits: torch.Tensor


class DecodeGraphs:
    """Graphs read their arguments from fixed arrays, which every step fills anew; lengths are read on the device.

    Args:
        pages: allocated pages; its steps are used while a graph is captured.
        forward: runs the model with the pages' current step.
        table_width: most blocks of a sequence.
        sizes: batch sizes to capture, ascending.
    """

    def __init__(
        self, pages: CudaPages, forward: Forward, device: torch.device, table_width: int, sizes: tuple[int, ...]
    ) -> None:
        self._pages, self._device, self._max_size = pages, device, sizes[-1]
        self._numbers = torch.zeros(7 * self._max_size, dtype=torch.int32, device=device)
        self._tables = torch.zeros(self._max_size, table_width, dtype=torch.int32, device=device)
        logger.info("capturing %d CUDA graphs for decode steps of 1 to %d sequences", len(sizes), self._max_size)
        # Largest first: the smaller ones then fit into its memory.
        captured = {size: self._capture(size, forward) for size in reversed(sizes)}
        self._graphs = {size: captured[size] for size in sizes}

    def can_run(self, batch: Batch) -> bool:
        """Whether `batch` is decodes only, all of whose logits are wanted, and not too many."""
        return 0 < batch.num_tokens == batch.num_chunks == len(batch.wanted) <= self._max_size

    def run(self, batch: Batch) -> torch.Tensor:
        """Logits [R, vocabulary] of a batch that `can_run`; valid until the next call."""
        size = next(size for size in self._graphs if size >= batch.num_tokens)
        self._fill(batch, size)
        graph = self._graphs[size]
        graph.replay()
        return graph.logits[0, : batch.num_tokens]

    def _capture(self, size: int, forward: Forward) -> _Graph:
        token_ids, positions, slots = (self._numbers[i * size : (i + 1) * size] for i in range(3))
        self._numbers.zero_()
        slots.fill_(-1)
        rows = self._numbers[3 * size : 7 * size].view(size, 4)
        rows[:, 0] = torch.arange(size)
        no_tiles = torch.empty(0, 6, dtype=torch.int32, device=self._device)
        longest = self._tables.shape[1] * self._pages.block_size
        step = Step(slots, rows, no_tiles, self._tables, self._pages.splits_for(size, longest))
        wanted = torch.arange(size, device=self._device)

        def run_step() -> torch.Tensor:
            self._pages.use(step)
            return forward(token_ids.long(), positions.long(), wanted)

        return _Graph(*self._pages.launcher.capture(run_step))

    def _fill(self, batch: Batch, size: int) -> None:
        """One copy to the device: token ids, positions, slots, rows, then the columns of the tables in use."""
        count, width = batch.num_tokens, -(-int(batch.context_lens.max()) // self._pages.block_size)
        numbers = np.zeros(7 * size, np.int32)
        numbers[:count], numbers[size : size + count] = batch.token_ids, batch.positions
        slots, rows = numbers[2 * size : 3 * size], numbers[3 * size :].reshape(size, 4)
        slots[:count], slots[count:] = batch.slots, -1
        rows[:, 0] = np.arange(size)
        rows[:count] = self._pages.rows_of(batch)
        numbers_there, tables = upload(self._device, numbers, batch.block_tables[:, :width])
        self._numbers[: 7 * size].copy_(numbers_there)
        self._tables[:count, :width].copy_(tables)
