"""`BatchBuilder`: from the scheduler's work to the arrays a runner reads, and to the plan the sampler follows."""

from __future__ import annotations

import numpy as np

from chatserve.decoding.sequence import Sequence
from chatserve.engine.decodes import Decodes
from chatserve.engine.request import Request
from chatserve.engine.sampler import SamplingPlan
from chatserve.engine.scheduler import Chunk, Work
from chatserve.kv import BlockPool, BlockTable, TableMatrix
from chatserve.models.batch import Batch, Int32Array


class BatchBuilder:
    """Builds the batches of one engine; the block tables stay in place from one to the next.

    Args:
        pool: whose blocks the tables name.

    Attributes:
        num_foreseen: batches whose arrays were ready before it was known that they are needed.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.num_foreseen = 0
        self._pool = pool
        self._shift = pool.block_size.bit_length() - 1
        self._matrix = TableMatrix()
        self._decodes: Decodes | None = None  # of the last batch, if it was nothing else
        self._forecast: Decodes | None = None

    def build(self, work: Work, plan: SamplingPlan) -> Batch:
        """The step's Batch, rows of plain draws first; what is wanted of each row is added to `plan`."""
        rows = _Rows()
        rows.add_draws(work.draws, plan)
        if not work.chunks:
            return self._batch_of_decodes(rows)
        self._decodes = self._forecast = None
        rows.add_bounds()
        for chunk in work.chunks:
            rows.add_chunk(chunk, plan)
        return self._batch(rows)

    def foresee(self) -> None:
        """Make the arrays of the next batch, should it follow from the last one as most do."""
        if self._decodes is not None:
            self._forecast = self._decodes.foresee()

    def _batch_of_decodes(self, rows: _Rows) -> Batch:
        tables = self._matrix.stack(rows.tables)
        decodes = self._forecast
        if decodes is not None and decodes.are_of(rows.tables, rows.stops):
            self.num_foreseen += 1
            if self._matrix.changed:  # a block was begun, or copied since a fork shares it
                lines = np.array(self._matrix.changed, np.int32)
                decodes.slots[lines] = self._slots(tables, lines, decodes.positions[lines])
        else:
            decodes = Decodes.of(rows.tables, rows.stops)
            decodes.slots = self._slots(tables, decodes.query_starts[:-1], decodes.positions)
        self._decodes, self._forecast = decodes, None
        return Batch(
            token_ids=np.array(rows.token_ids, np.int32),
            positions=decodes.positions,
            slots=decodes.slots,
            query_starts=decodes.query_starts,
            context_lens=decodes.context_lens,
            block_tables=tables,
            wanted=decodes.query_starts[:-1],
            copies=self._pool.take_copies(),
        )

    def _batch(self, rows: _Rows) -> Batch:
        starts, stops = np.array(rows.starts, np.int32), np.array(rows.stops, np.int32)
        query_starts = np.zeros(len(starts) + 1, np.int32)
        np.add.accumulate(stops - starts, dtype=np.int32, out=query_starts[1:])
        owner = np.repeat(np.arange(len(starts), dtype=np.int32), stops - starts)
        positions = np.arange(len(owner), dtype=np.int32) - (query_starts[:-1] - starts)[owner]
        tables = self._matrix.stack(rows.tables)
        slots = self._slots(tables, owner, positions)
        if rows.first_new != rows.starts:  # some tokens are only run again
            slots[positions < np.array(rows.first_new, np.int32)[owner]] = -1
        return Batch(
            token_ids=np.array(rows.token_ids, np.int32),
            positions=positions,
            slots=slots,
            query_starts=query_starts,
            context_lens=stops,
            block_tables=tables,
            wanted=np.array(rows.wanted, np.int32),
            copies=self._pool.take_copies(),
        )

    def _slots(self, tables: Int32Array, owner: Int32Array, positions: Int32Array) -> Int32Array:
        """Where the KV of the tokens at `positions` goes, each by the line of `tables` that `owner` names."""
        blocks = tables[owner, positions >> self._shift]
        slots: Int32Array = (blocks << self._shift) + (positions & self._pool.block_size - 1)
        return slots


class _Rows:
    """What the arrays of a batch are made of: bounds and table of each chunk, all token ids, all wanted rows."""

    __slots__ = ("first_new", "starts", "stops", "tables", "token_ids", "wanted")

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.starts: list[int] = []
        self.stops: list[int] = []
        self.first_new: list[int] = []
        self.tables: list[BlockTable] = []
        self.wanted: list[int] = []

    def add_draws(self, requests: list[Request], plan: SamplingPlan) -> None:
        """The last token of each sequence, which is a chunk of its own; first of all."""
        drawn: list[Sequence] = []
        for request in requests:
            draw, processing = request.draw, request.processing
            assert draw is not None
            if not processing.is_identity:
                plan.processed += [
                    (row, processing, sequence.tokens, sequence.prompt_len)
                    for row, sequence in enumerate(draw.sequences, len(drawn))
                ]
            plan.draw_warps += [draw.warp] * len(draw.sequences)
            drawn += draw.sequences
        plan.draw_rows += range(len(drawn))
        plan.draw_counters += [sequence._next_counter() for sequence in drawn]
        self.token_ids = [sequence._tokens[-1] for sequence in drawn]
        self.stops = [len(sequence._tokens) for sequence in drawn]
        self.tables = [sequence._table for sequence in drawn]

    def add_bounds(self) -> None:
        """Of the draws, as of chunks."""
        self.starts = [stop - 1 for stop in self.stops]
        self.first_new = self.starts[:]
        self.wanted = list(range(len(self.stops)))

    def add_chunk(self, chunk: Chunk, plan: SamplingPlan) -> None:
        first_token = len(self.token_ids) - chunk.start
        self.token_ids += chunk.task.tokens(chunk.start, chunk.stop)
        self.starts.append(chunk.start)
        self.stops.append(chunk.stop)
        self.first_new.append(chunk.first_new)
        self.tables.append(chunk.task.leader._table)
        for position in range(chunk.first_row, chunk.stop):
            _ask(chunk, position, len(self.wanted), plan)
            self.wanted.append(first_token + position)


def row_owners(work: Work) -> list[Request]:
    """The request each wanted row belongs to, in the order of `Batch.wanted`."""
    owners = [request for request in work.draws if request.draw for _ in request.draw.sequences]
    return owners + [chunk.request for chunk in work.chunks for _ in range(num_rows(chunk))]


def num_rows(chunk: Chunk) -> int:
    """Rows of the chunk that are wanted."""
    return max(0, chunk.stop - chunk.first_row)


def _ask(chunk: Chunk, position: int, row: int, plan: SamplingPlan) -> None:
    task, processing = chunk.task, chunk.request.processing
    if not processing.is_identity and not task.is_raw:
        plan.processed.append((row, processing, task.context(position), task.leader.prompt_len))
    for pending, index in task.consumers:
        pending.ask(plan, row, index, position - task.first_row)
