"""`SwapSpace`: KV blocks of preempted groups in host memory (PagedAttention, section 4.5)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chatserve.kv.block_pool import BlockPool
from chatserve.kv.block_table import BlockTable


@dataclass(frozen=True, slots=True)
class SwappedTable:
    """What a table held when it left: the host block of each logical block, and its filled slots."""

    blocks: tuple[int, ...]
    num_tokens: int


class SwapSpace:
    """Host blocks for the tables of whole groups, and the moves to and from them that a step still has to make.

    A block is moved once however many tables of the group name it, and is shared by them again on return. Moves are
    only queued: `take_moves` hands them over, all those out run before all those in, and both before any copy or write.

    Args:
        pool: the device pool.
        num_blocks: host blocks; never more than the device pool has (section 4.5), so that any of them can return.
    """

    def __init__(self, pool: BlockPool, num_blocks: int) -> None:
        self.num_blocks = min(num_blocks, pool.num_blocks)
        self._pool = pool
        self._free = list(range(self.num_blocks - 1, -1, -1))
        self._out: list[tuple[int, int]] = []
        self._in: dict[int, int] = {}  # device block -> host block it is to be read from
        self._deferred: list[int] = []  # host blocks that queued moves read; free once the moves are taken

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Host blocks that hold something, those a queued move still reads included."""
        return self.num_blocks - len(self._free)

    def can_hold(self, tables: Iterable[BlockTable]) -> bool:
        """Whether `swap_out` is possible: there is room, and none of the blocks is still on its way in."""
        blocks = distinct_blocks(tables)
        return len(blocks) <= len(self._free) and blocks.isdisjoint(self._in)

    def swap_out(self, tables: Iterable[BlockTable]) -> list[SwappedTable]:
        """Move the tables of a group to the host, all or nothing; they are empty afterwards.

        The caller has asked `can_hold`, and has truncated the tables to what is computed.
        """
        tables = list(tables)
        hosts: dict[int, int] = {}
        for table in tables:
            for block in table.blocks.tolist():
                if block not in hosts:
                    hosts[block] = self._free.pop()
                    self._out.append((self._pool.contents_of(block), hosts[block]))
        swapped = [
            SwappedTable(tuple(hosts[block] for block in table.blocks.tolist()), table.num_tokens) for table in tables
        ]
        for table in tables:
            table.free()
        return swapped

    def num_blocks_of(self, swapped: Iterable[SwappedTable]) -> int:
        """Device blocks that `swap_in` takes at most."""
        return len({host for table in swapped for host in table.blocks})

    def swap_in(self, group: Iterable[tuple[BlockTable, SwappedTable, list[int]]]) -> None:
        """Bring a group back, all or nothing: fill its empty tables; the host blocks are given up.

        Args:
            group: each table with what it held, and the device blocks that are known to hold the first of its blocks'
                contents (found in the prefix index): those are shared instead of moved.
        """
        group = list(group)
        devices: dict[int, int] = {}
        for _, swapped, known in group:
            devices |= dict(zip(swapped.blocks, known, strict=False))
        self._free.extend(devices)  # nothing is read from them
        ours = np.array(sorted(set(devices.values())), np.int32)
        self._pool.share(ours)  # before anything is allocated: it might take a cached one of them
        moved = [
            host for host in dict.fromkeys(h for _, swapped, _ in group for h in swapped.blocks) if host not in devices
        ]
        for host in moved:
            devices[host] = self._pool.allocate()
            self._in[devices[host]] = host
        for table, swapped, _ in group:
            table.fill([devices[host] for host in swapped.blocks], swapped.num_tokens)
        self._pool.release(np.concatenate([ours, np.array([devices[host] for host in moved], np.int32)]))
        self._deferred.extend(moved)

    def discard(self, swapped: Iterable[SwappedTable]) -> None:
        """Give up what a group had here: its request has ended."""
        hosts = {host for table in swapped for host in table.blocks}
        self._out = [(device, host) for device, host in self._out if host not in hosts]
        self._free.extend(sorted(hosts))

    def take_moves(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The queued moves: int32[., 2] (device, host) pairs out, and int32[., 2] (host, device) pairs in."""
        out = np.array(self._out, np.int32).reshape(-1, 2)
        back = np.array([(host, device) for device, host in self._in.items()], np.int32).reshape(-1, 2)
        self._free.extend(self._deferred)
        self._out, self._in, self._deferred = [], {}, []
        return out, back


def distinct_blocks(tables: Iterable[BlockTable]) -> set[int]:
    """The blocks that at least one of the tables names."""
    return {block for table in tables for block in table.blocks.tolist()}
