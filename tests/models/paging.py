"""A naive pager for the tests of runners: scattered blocks, ragged batches, no sharing."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from chatserve.models.batch import Batch, Int32Array


@dataclass
class Paged:
    """A sequence under test: its tokens, its blocks, and how many of its tokens are in the pages."""

    token_ids: list[int]
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0


class Pager:
    """Hands out the blocks of a pool in random order, each to one sequence."""

    def __init__(self, num_blocks: int, block_size: int, rng: np.random.Generator) -> None:
        self.block_size = block_size
        self._free = rng.permutation(num_blocks).tolist()

    def batch(self, work: list[tuple[Paged, int]], *, wanted: str = "all", rerun: int = 0) -> Batch:
        """A step that runs the next `n` tokens of each sequence in `work`.

        Args:
            wanted: "all" tokens' logits, those of the "last" token of each chunk, or "none".
            rerun: this many tokens before the new ones are run again without being written.
        """
        chunks = [self._chunk(sequence, count, rerun) for sequence, count in work]
        tokens, positions, slots = (np.concatenate(parts).astype(np.int32) for parts in zip(*chunks, strict=True))
        starts = np.cumsum([0, *(len(chunk[0]) for chunk in chunks)]).astype(np.int32)
        width = max(len(sequence.blocks) for sequence, _ in work)
        tables = np.zeros((len(work), width), np.int32)
        for row, (sequence, _) in zip(tables, work, strict=True):
            row[: len(sequence.blocks)] = sequence.blocks
        rows = {"all": np.arange(starts[-1]), "last": starts[1:] - 1, "none": np.empty(0)}[wanted]
        context_lens = np.array([sequence.num_computed for sequence, _ in work], np.int32)
        return Batch(tokens, positions, slots, starts, context_lens, tables, rows.astype(np.int32))

    def _chunk(self, sequence: Paged, count: int, rerun: int) -> tuple[Int32Array, Int32Array, Int32Array]:
        written_from = sequence.num_computed
        end = written_from + count
        while len(sequence.blocks) * self.block_size < end:
            sequence.blocks.append(self._free.pop())
        positions = np.arange(max(0, written_from - rerun), end, dtype=np.int32)
        slots = np.array(sequence.blocks)[positions // self.block_size] * self.block_size + positions % self.block_size
        slots[positions < written_from] = -1
        sequence.num_computed = end
        return np.array(sequence.token_ids, np.int32)[positions], positions, slots
