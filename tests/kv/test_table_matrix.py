"""The kept matrix of block tables against one stacked afresh."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatserve.kv import BlockPool, BlockTable, TableMatrix


def assert_stacked(matrix: TableMatrix, tables: list[BlockTable]) -> None:
    lines = matrix.stack(tables)
    assert (len(lines), lines.dtype, lines.flags.c_contiguous) == (len(tables), np.dtype(np.int32), True)
    for line, table in zip(lines, tables, strict=True):
        assert line.tolist() == table.blocks.tolist() + [0] * (len(line) - table.num_blocks)


@given(choices=st.randoms(use_true_random=False), block_size=st.sampled_from([1, 4]))
def test_whatever_happens_to_tables_the_matrix_holds_their_blocks(choices: random.Random, block_size: int) -> None:
    pool, matrix = BlockPool(4000, block_size), TableMatrix()
    tables = [BlockTable(pool) for _ in range(4)]
    for _ in range(60):
        _change(choices.choice(tables), choices, tables)
        pool.take_copies()
        assert_stacked(
            matrix, choices.sample(tables, choices.randint(1, len(tables))) if choices.random() < 0.3 else tables
        )


def _change(table: BlockTable, choices: random.Random, tables: list[BlockTable]) -> None:
    kind = choices.randrange(6)
    if kind == 0:
        table.extend(choices.choice([1, 1, 3, 40]))
    elif kind == 1:
        table.truncate(choices.randint(0, table.num_tokens))
    elif kind == 2 and len(tables) < 8:
        tables.insert(choices.randint(0, len(tables)), table.fork())
    elif kind == 3 and len(tables) > 1:
        tables.remove(table)
        table.free()
    elif kind == 4:
        other = choices.choice(tables)
        if other is not table:
            table.adopt(other, choices.randint(0, other.num_tokens))
    else:
        table.extend(1)


def test_an_unchanged_table_is_not_written_again() -> None:
    pool, matrix = BlockPool(100, 4), TableMatrix()
    tables = [BlockTable(pool), BlockTable(pool)]
    for table in tables:
        table.extend(5)
    lines = matrix.stack(tables)
    lines[0, 0] = 77  # what only a second write would undo
    tables[0].extend(3)  # within the block
    assert matrix.stack(tables)[0, 0] == 77
    tables[0].extend(1)
    assert_stacked(matrix, tables)


def test_the_width_goes_back_when_a_long_table_leaves() -> None:
    pool, matrix = BlockPool(2000, 1), TableMatrix()
    long, short = BlockTable(pool), BlockTable(pool)
    long.extend(1000)
    short.extend(2)
    assert matrix.stack([short, long]).shape[1] >= 1000
    short.extend(1)
    assert_stacked(matrix, [short])
    assert matrix.stack([short]).shape[1] <= 16


@pytest.mark.parametrize("num_shared", [1, 2])
def test_open_slots_close_when_the_table_is_shared(num_shared: int) -> None:
    pool = BlockPool(8, 4)
    table = BlockTable(pool)
    table.extend(num_shared)
    assert (table.num_open, table.num_needed(4 - num_shared)) == (4 - num_shared, 0)
    fork = table.fork()
    assert (table.num_open, fork.num_open, table.num_needed(1)) == (0, 0, 1)
