"""`BlockPool`: which physical KV blocks are free and how many tables name each used one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chatserve.kv.prefix_index import PrefixIndex

BlockIds = NDArray[np.int32]


class OutOfBlocksError(RuntimeError):
    """A block was taken from an empty pool; callers ask `num_free` first, so this is a fault of ours."""


class BlockPool:
    """A fixed set of equal blocks, handed out one at a time with reference counts (PagedAttention, section 4.3).

    Blocks are integers. Allocating and freeing are O(1) each. A block belongs to everyone who holds a count on it;
    whoever allocated or shared it releases it exactly once.

    Args:
        num_blocks: blocks in the pool, at least 1.
        block_size: tokens in a block: a power of two from 1 to 256.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, not {num_blocks}")
        if block_size not in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            raise ValueError(f"block_size must be a power of two from 1 to 256, not {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.ref_counts: NDArray[np.int32] = np.zeros(num_blocks, np.int32)
        self.index = PrefixIndex()
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: dict[int, None] = {}  # indexed blocks without a holder, least recently used first
        self._copies: dict[int, int] = {}  # destination -> source
        self.num_copies = 0
        self._deferred: list[int] = []  # copy sources without a holder; free once the copies are taken

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can hand out now, cached ones included."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Blocks without a holder that are kept, findable, until their turn to be handed out."""
        return len(self._cached)

    @property
    def num_deferred(self) -> int:
        """Blocks without a holder that become available once the queued copies are taken."""
        return len(self._deferred)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self) -> int:
        """Take a free block, else the least recently used cached one; its count is 1."""
        if self._free:
            block = self._free.pop()
        elif self._cached:
            block = next(iter(self._cached))
            del self._cached[block]
            self.index.remove(block)
        else:
            raise OutOfBlocksError("no free KV block")
        self.ref_counts[block] = 1
        return block

    def share(self, blocks: BlockIds) -> None:
        """Add one count to each of `blocks` (used ones or indexed ones without a holder, none twice)."""
        if self._cached or self._deferred:
            for block in blocks[self.ref_counts[blocks] == 0].tolist():
                if block in self._cached:
                    del self._cached[block]
                else:
                    self._deferred.remove(block)
        self.ref_counts[blocks] += 1

    def release(self, blocks: BlockIds) -> None:
        """Drop one count of each of `blocks` (none twice); those that reach zero become free.

        Raises ValueError, and changes nothing, when a block is free already.
        """
        counts = self.ref_counts[blocks]
        if len(counts) and counts.min() < 1:
            raise ValueError(f"blocks released twice: {blocks[counts < 1].tolist()}")
        counts -= 1
        self.ref_counts[blocks] = counts
        freed = blocks[counts == 0].tolist()
        if self._copies:
            freed = self._without_copy_sources(freed)
        self._give_back(freed)

    def copy_on_write(self, block: int) -> int:
        """Replace one holder's count on a shared block by a block of its own and queue the copy of the contents.

        The source stays out of the free list until the copies are taken: all copies of a step run in one launch,
        in no order, so no source may be another copy's destination.
        """
        own = self.allocate()
        self._copies[own] = block
        self.num_copies += 1
        self.ref_counts[block] -= 1
        return own

    def contents_of(self, block: int) -> int:
        """The block that holds the contents of `block` until the queued copies have run."""
        return self._copies.get(block, block)

    def take_copies(self) -> NDArray[np.int32]:
        """The queued copies int32[C, 2] as (source, destination) pairs; they run before anything else is written."""
        pairs = np.array([(source, own) for own, source in self._copies.items()], np.int32).reshape(-1, 2)
        self._copies.clear()
        self._give_back(self._deferred)
        self._deferred = []
        return pairs

    def _give_back(self, blocks: list[int]) -> None:
        """Make blocks available; indexed ones stay cached, the last of a sequence being the first to go."""
        for block in reversed(blocks):
            if block in self.index:
                self._cached[block] = None
            else:
                self._free.append(block)

    def _without_copy_sources(self, freed: list[int]) -> list[int]:
        """Forget queued copies into freed blocks, and keep their queued sources back."""
        for block in freed:
            self._copies.pop(block, None)
        sources = set(self._copies.values())
        idle = freed + self._deferred
        self._deferred = [block for block in idle if block in sources]
        return [block for block in idle if block not in sources]

    def cached_blocks(self) -> BlockIds:
        """Blocks without a holder that are kept, findable: int32[num_cached], least recently used first."""
        return np.fromiter(self._cached, np.int32, len(self._cached))

    def idle_blocks(self) -> list[int]:
        """Blocks nobody holds: free, cached, and copy sources whose last holder went; for the integrity check."""
        return [*self._free, *self._cached, *self._deferred]
