"""`Step`: what the attention kernels are told about one step, and how it is made from a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from chatserve.models.batch import Batch, Int32Array
from cuda_kernels.extend import ROWS_PER_TILE

MAX_SPLITS = 32
MIN_SPLIT_TOKENS = 256
"""A split of fewer tokens costs more in joining than it gains."""


@dataclass(frozen=True, slots=True)
class Step:
    """Arrays on the device, int32.

    Attributes:
        slots: [T], where each token's K and V go; -1: nowhere.
        rows: [R, 4], for `compile_decode`.
        tiles: [N, 6], for `compile_extend`.
        block_tables: [S, W].
        num_splits: into how many parts the context of each row is cut.
    """

    slots: torch.Tensor
    rows: torch.Tensor
    tiles: torch.Tensor
    block_tables: torch.Tensor
    num_splits: int


def decode_rows(batch: Batch, block_size: int, is_row: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Int32Array:
    """Every token of the chunks in `is_row`: int32[R, 4] of token, chunk, visible tokens, first block or -1."""
    starts, counts = batch.query_starts[:-1], np.diff(batch.query_starts)
    chunks = np.repeat(np.arange(batch.num_chunks), np.where(is_row, counts, 0))
    tokens = np.flatnonzero(np.repeat(is_row, counts))
    visible = batch.context_lens[chunks] - counts[chunks] + (tokens - starts[chunks]) + 1
    return np.stack([tokens, chunks, visible, consecutive_runs(batch, block_size)[chunks]], axis=1).astype(np.int32)


def extend_tiles(
    batch: Batch, block_size: int, group_size: int, is_row: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> Int32Array:
    """Tiles of the chunks not in `is_row`: int32[N, 6], see `compile_extend`."""
    runs = consecutive_runs(batch, block_size).tolist()
    tiles: list[tuple[int, int, int, int, int, int]] = []
    for chunk in np.flatnonzero(~is_row).tolist():
        first, end = int(batch.query_starts[chunk]), int(batch.query_starts[chunk + 1])
        context_len = int(batch.context_lens[chunk])
        rows = range(0, (end - first) * group_size, ROWS_PER_TILE)
        tiles.extend((chunk, first, end - first, row, context_len, runs[chunk]) for row in rows)
    return np.array(tiles, np.int32).reshape(-1, 6)


def consecutive_runs(batch: Batch, block_size: int) -> Int32Array:
    """int32[S]: the first block of a chunk's table when all blocks of its context follow one another, else -1."""
    tables = batch.block_tables
    if not tables.size:
        return np.full(batch.num_chunks, -1, np.int32)
    places = np.arange(tables.shape[1])
    num_blocks = -(-batch.context_lens // block_size)
    follows = (tables == tables[:, :1] + places) | (places >= num_blocks[:, None])
    return np.where(follows.all(axis=1), tables[:, 0], -1).astype(np.int32)


def choose_splits(num_rows: int, blocks_per_row: int, longest: int, wanted_blocks: int) -> int:
    """Splits that fill the device: enough thread blocks for `wanted_blocks`, none with too few tokens."""
    filling = -(-wanted_blocks // max(1, num_rows * blocks_per_row))
    return max(1, min(filling, -(-longest // MIN_SPLIT_TOKENS), MAX_SPLITS))
