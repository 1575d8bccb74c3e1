"""What the kernels are told about a step, against a loop over its tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chatserve.models.batch import Batch, Int32Array
from chatserve.models.cuda_step import MAX_SPLITS, choose_splits, consecutive_runs, decode_rows, extend_tiles
from cuda_kernels.extend import ROWS_PER_TILE

BLOCK_SIZE = 8
CHUNKS = st.lists(
    st.integers(1, 60).flatmap(lambda context: st.tuples(st.just(context), st.integers(1, context), st.booleans())),
    min_size=1,
    max_size=5,
)


def make_batch(chunks: list[tuple[int, int, bool]]) -> Batch:
    """Chunks of (context, new tokens, whether the blocks follow one another); unused entries of the tables are 0."""
    counts = [count for _, count, _ in chunks]
    num_tokens = sum(counts)
    tables = np.zeros((len(chunks), 9), np.int32)
    for row, (context, _, follows) in enumerate(chunks):
        size = -(-context // BLOCK_SIZE)
        tables[row, :size] = 20 * row + 5 + np.arange(size) * (1 if follows else 2)
    numbers = np.zeros(num_tokens, np.int32)
    starts = np.cumsum([0, *counts]).astype(np.int32)
    contexts = np.array([context for context, _, _ in chunks], np.int32)
    return Batch(numbers, numbers, numbers, starts, contexts, tables, np.empty(0, np.int32))


def run_of(batch: Batch, chunk: int) -> int:
    blocks = batch.block_tables[chunk, : -(-int(batch.context_lens[chunk]) // BLOCK_SIZE)].tolist()
    return blocks[0] if blocks == list(range(blocks[0], blocks[0] + len(blocks))) else -1


@given(CHUNKS, st.integers(0, 31))
def test_every_token_is_in_one_row_or_tile(chunks: list[tuple[int, int, bool]], which: int) -> None:
    batch, group_size = make_batch(chunks), 5
    is_row = np.array([bool(which >> chunk & 1) for chunk in range(len(chunks))])
    rows, tiles = decode_rows(batch, BLOCK_SIZE, is_row), extend_tiles(batch, BLOCK_SIZE, group_size, is_row)
    expected_rows, expected_tiles, first = [], [], 0
    for chunk, (context, count, _) in enumerate(chunks):
        run = run_of(batch, chunk)
        if is_row[chunk]:
            expected_rows += [[first + i, chunk, context - count + 1 + i, run] for i in range(count)]
        else:
            starts = range(0, count * group_size, ROWS_PER_TILE)
            expected_tiles += [[chunk, first, count, start, context, run] for start in starts]
        first += count
    assert rows.tolist() == expected_rows
    assert tiles.tolist() == expected_tiles
    assert rows.dtype == tiles.dtype == np.int32


def test_runs_of_a_batch_without_tables() -> None:
    none: Int32Array = np.empty(0, np.int32)
    empty = Batch(none, none, none, np.zeros(1, np.int32), none, np.empty((0, 0), np.int32), none)
    assert consecutive_runs(empty, BLOCK_SIZE).tolist() == []


@given(st.integers(1, 300), st.integers(1, 64), st.integers(1, 100_000), st.integers(1, 1000))
def test_splits_fill_the_device_and_fit_the_workspace(rows: int, heads: int, longest: int, wanted: int) -> None:
    splits = choose_splits(rows, heads, longest, wanted)
    assert 1 <= splits <= MAX_SPLITS
    assert splits == 1 or rows * heads * splits <= 2 * wanted  # the workspace of `CudaPages`
    assert splits == 1 or longest > 256 * (splits - 1)


def test_few_long_contexts_are_split_and_many_or_short_ones_are_not() -> None:
    assert choose_splits(1, 8, 16_000, 528) == MAX_SPLITS
    assert choose_splits(4, 8, 16_000, 528) == 17
    assert choose_splits(256, 8, 16_000, 528) == 1
    assert choose_splits(1, 8, 200, 528) == 1
