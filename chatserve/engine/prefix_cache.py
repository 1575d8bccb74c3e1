"""`PrefixCache`: lets sequences reuse and contribute full blocks through the pool's prefix index.

Multi-turn chats, shared system prompts and re-admitted requests hit it without asking. A hit never covers a position
whose logits are wanted, so at least one token of a prompt is always computed.
"""

from __future__ import annotations

from collections.abc import Hashable

from chatserve.decoding.sequence import Sequence
from chatserve.engine.request import Request
from chatserve.engine.rows import RowTask
from chatserve.kv import BlockPool


class PrefixCache:
    """Reuse before a task runs, contribution after it has run.

    Args:
        pool: whose index is used.
        is_enabled: False makes both do nothing.
    """

    def __init__(self, pool: BlockPool, is_enabled: bool = True) -> None:
        self._pool = pool
        self._is_enabled = is_enabled
        self.num_hit_tokens = 0

    def reuse(self, request: Request, task: RowTask) -> None:
        """Take over indexed blocks behind what the leader's table holds, up to the first wanted row."""
        sequence, table = task.leader, task.leader._table
        size, held = self._pool.block_size, table.num_tokens
        if not self._is_enabled or task.next_row - held < size or held % size:
            return
        entry = sequence._indexed
        if (entry.depth if entry else 0) * size != held:
            return
        blocks: list[int] = []
        for start in range(held, task.next_row - size + 1, size):
            found = self._pool.index.find(entry, sequence._tokens[start : start + size], request.given.cache_salt)
            if found is None:
                break
            blocks.append(found.block)
            entry = found
        if blocks:
            table.append_blocks(blocks)
            sequence._indexed = entry
            self._count(request, sequence, len(blocks) * size)

    def next_block(self, request: Request, task: RowTask) -> Hashable:
        """What the next full block of the task will be found by, the same for tasks that would compute the same block;
        None when nobody could reuse it."""
        sequence, size = task.leader, self._pool.block_size
        entry = sequence._indexed
        start = (entry.depth if entry else 0) * size
        if not self._is_enabled or task.next_row - start < size or sequence._table.num_tokens >= start + size:
            return None
        return id(entry), request.given.cache_salt, tuple(sequence._tokens[start : start + size])

    def contribute(self, request: Request, sequence: Sequence) -> None:
        """Index the full blocks that the sequence has computed; those that are known already are merged with the known
        ones."""
        table, size = sequence._table, self._pool.block_size
        num_full = min(table.num_tokens, len(sequence._tokens)) // size
        entry = sequence._indexed
        depth = entry.depth if entry else 0
        if not self._is_enabled or num_full <= depth:
            return
        index, salt = self._pool.index, request.given.cache_salt
        for logical in range(depth, num_full):
            tokens = sequence._tokens[logical * size : (logical + 1) * size]
            own = int(table.blocks[logical])
            found = index.find(entry, tokens, salt)
            if found is None:
                found = index.add(entry, tokens, own, salt)
                if found is None:
                    return
            elif found.block != own:
                _merge(request, logical, own, found.block)
            entry = sequence._indexed = found

    def _count(self, request: Request, sequence: Sequence, num_tokens: int) -> None:
        self.num_hit_tokens += num_tokens
        if sequence is request.prompt and not request.num_preemptions:
            request.num_cached_tokens += num_tokens


def _merge(request: Request, logical: int, own: int, known: int) -> None:
    """Let every sequence of the request that holds `own` at this place hold `known`, which has the same contents."""
    for sequence in request.group.live:
        table = sequence._table
        if table.num_blocks > logical and table.blocks[logical] == own:
            table.replace(logical, known)
