"""`build_batch`: from the scheduler's chunks to the arrays a runner reads, and to the plan the sampler follows."""

from __future__ import annotations

import numpy as np

from chatserve.engine.request import Request
from chatserve.engine.sampler import SamplingPlan
from chatserve.engine.scheduler import Chunk
from chatserve.kv import BlockPool
from chatserve.models.batch import Batch


def build_batch(chunks: list[Chunk], pool: BlockPool, plan: SamplingPlan) -> Batch:
    """The step's Batch; what is wanted of each of its rows is added to `plan`."""
    token_ids: list[int] = []
    query_starts = [0]
    wanted: list[int] = []
    for chunk in chunks:
        first_token = len(token_ids) - chunk.start
        token_ids += chunk.task.tokens(chunk.start, chunk.stop)
        query_starts.append(len(token_ids))
        for position in range(chunk.first_row, chunk.stop):
            _ask(chunk, position, len(wanted), plan)
            wanted.append(first_token + position)
    bounds = np.array([(chunk.start, chunk.stop, chunk.first_new) for chunk in chunks], np.int32)
    starts = np.array(query_starts, np.int32)
    owner = np.repeat(np.arange(len(chunks)), np.diff(starts))
    positions = (np.arange(len(token_ids)) - starts[owner] + bounds[owner, 0]).astype(np.int32)
    tables = _stack_tables(chunks, pool)
    slots = tables[owner, positions // pool.block_size] * pool.block_size + positions % pool.block_size
    return Batch(
        token_ids=np.array(token_ids, np.int32),
        positions=positions,
        slots=np.where(positions < bounds[owner, 2], np.int32(-1), slots),
        query_starts=starts,
        context_lens=bounds[:, 1].copy(),
        block_tables=tables,
        wanted=np.array(wanted, np.int32),
        copies=pool.take_copies(),
    )


def row_owners(chunks: list[Chunk]) -> list[Request]:
    """The request each wanted row belongs to, in the order of `Batch.wanted`."""
    return [chunk.request for chunk in chunks for _ in range(num_rows(chunk))]


def num_rows(chunk: Chunk) -> int:
    """Rows of the chunk that are wanted."""
    return max(0, chunk.stop - chunk.first_row)


def _ask(chunk: Chunk, position: int, row: int, plan: SamplingPlan) -> None:
    task, processing = chunk.task, chunk.request.processing
    if not processing.is_identity and not task.is_raw:
        plan.processed.append((row, processing, task.context(position), task.leader.prompt_len))
    for pending, index in task.consumers:
        pending.ask(plan, row, index, position - task.first_row)


def _stack_tables(chunks: list[Chunk], pool: BlockPool) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    counts = [pool.blocks_for(chunk.stop) for chunk in chunks]
    tables = np.zeros((len(chunks), max(counts)), np.int32)
    for row, (chunk, count) in enumerate(zip(chunks, counts, strict=True)):
        tables[row, :count] = chunk.task.leader._table._blocks[:count]
    return tables
