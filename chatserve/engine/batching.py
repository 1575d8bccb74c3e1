"""`BatchBuilder`: from the scheduler's work to the arrays a runner reads, and to the plan the sampler follows."""

from __future__ import annotations

import numpy as np

from chatserve.engine.request import Request
from chatserve.engine.sampler import SamplingPlan
from chatserve.engine.scheduler import Chunk, Work
from chatserve.kv import BlockPool, BlockTable, TableMatrix
from chatserve.models.batch import Batch


class BatchBuilder:
    """Builds the batches of one engine; the block tables stay in place from one to the next.

    Args:
        pool: whose blocks the tables name.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._matrix = TableMatrix()

    def build(self, work: Work, plan: SamplingPlan) -> Batch:
        """The step's Batch, rows of plain draws first; what is wanted of each row is added to `plan`."""
        rows = _Rows()
        rows.add_draws(work.draws, plan)
        for chunk in work.chunks:
            rows.add_chunk(chunk, plan)
        return self._batch(rows)

    def _batch(self, rows: _Rows) -> Batch:
        size = self._pool.block_size
        starts, stops = np.array(rows.starts, np.int32), np.array(rows.stops, np.int32)
        if len(rows.token_ids) == len(starts):  # each chunk is one token, as in most steps
            query_starts = np.arange(len(starts) + 1, dtype=np.int32)
            owner, positions = query_starts[:-1], starts
        else:
            query_starts = np.zeros(len(starts) + 1, np.int32)
            np.add.accumulate(stops - starts, dtype=np.int32, out=query_starts[1:])
            owner = np.repeat(np.arange(len(starts)), stops - starts)
            positions = np.arange(len(owner), dtype=np.int32) - (query_starts[:-1] - starts)[owner]
        tables = self._matrix.stack(rows.tables)
        logical, inside = np.divmod(positions, np.int32(size))
        slots = tables[owner, logical] * np.int32(size) + inside
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
        token_ids, stops, tables = self.token_ids, self.stops, self.tables
        warps, counters = plan.draw_warps, plan.draw_counters
        for request in requests:
            draw, processing = request.draw, request.processing
            assert draw is not None
            for sequence in draw.sequences:
                tokens = sequence._tokens
                if not processing.is_identity:
                    plan.processed.append((len(stops), processing, tokens[:], sequence.prompt_len))
                warps.append(draw.warp)
                counters.append(sequence._next_counter())
                token_ids.append(tokens[-1])
                stops.append(len(tokens))
                tables.append(sequence._table)
        self.starts += [stop - 1 for stop in stops]
        self.first_new += self.starts
        self.wanted += range(len(stops))
        plan.draw_rows += range(len(stops))

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
