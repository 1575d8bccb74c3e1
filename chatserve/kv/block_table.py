"""`BlockTable`: logical to physical blocks of one sequence."""

from __future__ import annotations

import numpy as np

from chatserve.kv.block_pool import BlockIds, BlockPool


class BlockTable:
    """The page table of one sequence: physical block of each logical block, and how many slots are filled.

    All blocks but the last are full. The table holds one count on each of its blocks; whoever made the table frees it.
    Forking shares every block; writing behind a shared last block copies it first (copy-on-write, section 4.4).

    Attributes:
        num_tokens: filled slots over all blocks.
        num_open: empty slots at the end that are known to be this table's alone to write: taking one of them needs no
            block and no copy. Sharing the table closes them.
        version: grows whenever a physical block changes.
    """

    __slots__ = ("_blocks", "_num_blocks", "num_open", "num_tokens", "pool", "version")

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.num_tokens = 0
        self.num_open = 0
        self.version = 0
        self._num_blocks = 0
        self._blocks: BlockIds = np.empty(8, np.int32)

    @property
    def blocks(self) -> BlockIds:
        """Physical blocks int32[num_blocks] in logical order; a view, valid until the table changes."""
        return self._blocks[: self._num_blocks]

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def filled(self) -> list[int]:
        """Filled slots of each logical block, as in the paper's Figure 6."""
        size = self.pool.block_size
        return [min(size, self.num_tokens - start) for start in range(0, self.num_tokens, size)]

    def num_needed(self, num_new: int) -> int:
        """Blocks that `extend(num_new)` takes from the pool, a copy-on-write included."""
        if num_new <= self.num_open:
            return 0
        grown = self.pool.blocks_for(self.num_tokens + num_new) - self._num_blocks
        return grown + 1 if self._writes_shared_block() else grown

    def extend(self, num_new: int) -> None:
        """Make slots for `num_new` more tokens; the caller has checked `num_needed` against the pool."""
        if num_new > self.num_open:
            self._open(num_new)
        self.num_open -= num_new
        self.num_tokens += num_new

    def truncate(self, num_tokens: int) -> None:
        """Drop the slots behind the first `num_tokens`; blocks that hold none of them are released."""
        if num_tokens >= self.num_tokens:
            return
        self.num_tokens = num_tokens
        self.num_open = 0
        self.version += 1
        kept = self.pool.blocks_for(num_tokens)
        self.pool.release(self._blocks[kept : self._num_blocks])
        self._num_blocks = kept

    def fork(self) -> BlockTable:
        """A table that shares every block with this one."""
        child = BlockTable(self.pool)
        child._share(self, self.num_tokens)
        return child

    def adopt(self, other: BlockTable, num_tokens: int) -> None:
        """Give up the own blocks and share those that hold the first `num_tokens` tokens of `other`."""
        self.free()
        self._share(other, num_tokens)

    def append_blocks(self, blocks: list[int]) -> None:
        """Share full blocks behind those of this table, which are full too."""
        added = np.array(blocks, np.int32)
        self.pool.share(added)
        self._blocks = np.concatenate([self.blocks, added, np.empty(8, np.int32)])
        self._num_blocks += len(blocks)
        self.version += 1
        self.num_open = 0
        self.num_tokens = self._num_blocks * self.pool.block_size

    def replace(self, logical: int, block: int) -> None:
        """Hold `block`, which has the same contents, in place of the own block at this place."""
        old = self._blocks[logical : logical + 1].copy()
        self._blocks[logical] = block
        self.version += 1
        self.pool.share(self._blocks[logical : logical + 1])
        self.pool.release(old)

    def fill(self, blocks: list[int], num_tokens: int) -> None:
        """Share `blocks`, which hold `num_tokens` tokens, in a table that is empty."""
        self._blocks = np.array(blocks, np.int32)
        self._num_blocks = len(blocks)
        self.num_tokens = num_tokens
        self.num_open = 0
        self.version += 1
        self.pool.share(self._blocks)

    def free(self) -> None:
        """Release every block; the table is empty afterwards and may be filled again."""
        self.truncate(0)

    def _share(self, other: BlockTable, num_tokens: int) -> None:
        count = self.pool.blocks_for(num_tokens)
        self._blocks = np.empty(count + 8, np.int32)
        self._blocks[:count] = other._blocks[:count]
        self._num_blocks = count
        self.num_tokens = num_tokens
        self.num_open = other.num_open = 0
        self.version += 1
        self.pool.share(self._blocks[:count])

    def _writes_shared_block(self) -> bool:
        """Whether the next token goes into a partly filled block that others hold too."""
        is_partial = self.num_tokens % self.pool.block_size != 0
        return is_partial and bool(self.pool.ref_counts[self._blocks[self._num_blocks - 1]] > 1)

    def _open(self, num_new: int) -> None:
        """Have at least this many slots open, and all slots of the last block."""
        size = self.pool.block_size
        if self.num_tokens % size and not self.num_open:
            self._own_last_block()
        count = self.pool.blocks_for(self.num_tokens + num_new)
        if count > self._num_blocks:
            self._grow(count)
        self.num_open = count * size - self.num_tokens

    def _own_last_block(self) -> None:
        """Before the partly filled last block is written: copy it if others hold it, forget what it was indexed as."""
        last = self._num_blocks - 1
        block = int(self._blocks[last])
        if self.pool.ref_counts[block] > 1:
            self._blocks[last] = self.pool.copy_on_write(block)
            self.version += 1
        else:
            self.pool.index.remove(block)

    def _grow(self, count: int) -> None:
        if count > len(self._blocks):
            self._blocks = np.concatenate([self._blocks, np.empty(count, np.int32)])
        for logical in range(self._num_blocks, count):
            self._blocks[logical] = self.pool.allocate()
        self._num_blocks = count
        self.version += 1
