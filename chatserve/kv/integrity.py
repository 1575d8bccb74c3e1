"""`check_integrity`: the invariants of pool and tables, for tests and for operators who suspect a leak."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from chatserve.kv.block_pool import BlockPool
from chatserve.kv.block_table import BlockTable


class IntegrityError(AssertionError):
    """Pool and tables disagree; the message says how."""


def check_integrity(pool: BlockPool, tables: Iterable[BlockTable]) -> None:
    """Raise IntegrityError unless counts, tables and free list agree.

    Checked: every count equals the number of table entries that name the block; no free block is named; no block is
    free twice; free + cached + used == total; every table has just the blocks its tokens need.

    Args:
        pool: the pool to check.
        tables: all tables that hold blocks of it.
    """
    named = np.zeros(pool.num_blocks, np.int32)
    for table in tables:
        if table.num_blocks != pool.blocks_for(table.num_tokens):
            raise IntegrityError(f"a table of {table.num_tokens} tokens has {table.num_blocks} blocks")
        np.add.at(named, table.blocks, 1)
    wrong = np.flatnonzero(named != pool.ref_counts)
    if len(wrong):
        block = int(wrong[0])
        raise IntegrityError(f"block {block} is named {named[block]} times, its count is {pool.ref_counts[block]}")
    idle = pool.idle_blocks()
    if len(set(idle)) != len(idle):
        raise IntegrityError("a block is free twice")
    if set(idle) != set(np.flatnonzero(pool.ref_counts == 0).tolist()):
        raise IntegrityError("the free list is not the set of blocks with count 0")
