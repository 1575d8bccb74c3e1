"""Random swapping of groups of tables, on top of everything else that may happen to tables, against token lists."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from chatserve.kv import BlockPool, BlockTable, SwappedTable, SwapSpace, check_integrity
from tests.kv.test_block_tables import _NEVER, Memory, Tables


class SwappedMemory(Memory):
    """Memory with a host part: moves out, then moves in, run before the copies of a step."""

    def __init__(self, pool: BlockPool, space: SwapSpace) -> None:
        super().__init__(pool)
        self.space = space
        self.host = np.full((space.num_blocks, pool.block_size), _NEVER)

    def run(self, written: dict[BlockTable, list[int]], first_new: dict[BlockTable, int]) -> None:
        out, back = self.space.take_moves()
        for targets in (out[:, 1], back[:, 1]):
            assert len(set(targets.tolist())) == len(targets), "two moves into one block"
        self.host[out[:, 1]] = self.slots[out[:, 0]]
        self.slots[back[:, 1]] = self.host[back[:, 0]]
        super().run(written, first_new)


class SwappingTables(Tables):
    """Some of the tables leave for the host together, and come back or are given up."""

    @initialize(
        block_size=st.sampled_from([1, 4, 16]),
        num_blocks=st.integers(2, 20),
        choices=st.randoms(use_true_random=False),
        num_host_blocks=st.integers(0, 30),
    )
    def start(self, block_size: int, num_blocks: int, choices: random.Random, num_host_blocks: int = 0) -> None:
        super().start(block_size, num_blocks, choices)
        self.space = SwapSpace(self.pool, num_host_blocks)
        assert self.space.num_blocks <= num_blocks
        self.memory = SwappedMemory(self.pool, self.space)
        self.away: list[tuple[list[SwappedTable], list[list[int]]]] = []

    @rule()
    def swap_out(self) -> None:
        group = [table for table in self.tokens if self.choices.random() < 0.5]
        for table in group:
            if (first_new := self.first_new.pop(table, None)) is not None:  # what is not computed cannot leave
                table.truncate(first_new)
                del self.tokens[table][first_new:]
        if not group or not self.space.can_hold(group):
            return
        held = {block for table in group for block in table.blocks.tolist()}
        num_free, num_free_hosts = self.pool.num_free, self.space.num_free
        swapped = self.space.swap_out(group)
        assert self.space.num_free == num_free_hosts - len(held)
        assert self.space.num_blocks_of(swapped) == len(held)
        assert self.pool.num_free >= num_free
        assert all(table.num_blocks == 0 for table in group)
        self.away.append((swapped, [self.tokens.pop(table) for table in group]))

    @rule()
    def swap_in(self) -> None:
        if not self.away:
            return
        swapped, tokens = self.choices.choice(self.away)
        if self.space.num_blocks_of(swapped) > self.pool.num_free:
            return
        self.away = [group for group in self.away if group[0] is not swapped]
        tables = [BlockTable(self.pool) for _ in swapped]
        num_free = self.pool.num_free
        self.space.swap_in(zip(tables, swapped, [[] for _ in tables], strict=True))
        assert self.pool.num_free == num_free - self.space.num_blocks_of(swapped)
        for table, held in zip(tables, tokens, strict=True):
            assert table.num_tokens == len(held)
            self.tokens[table] = held

    @rule()
    def discard(self) -> None:
        if self.away:
            swapped, _ = self.away.pop(self.choices.randrange(len(self.away)))
            self.space.discard(swapped)

    @invariant()
    def host_blocks_add_up(self) -> None:
        if hasattr(self, "space"):
            held = {host for swapped, _ in self.away for table in swapped for host in table.blocks}
            assert len(held) <= self.space.num_used <= self.space.num_blocks


TestSwappingTables = SwappingTables.TestCase
TestSwappingTables.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_a_group_is_moved_once_and_shared_again() -> None:
    pool = BlockPool(8, 4)
    space = SwapSpace(pool, 8)
    parent = BlockTable(pool)
    parent.extend(10)
    group = [parent, parent.fork(), parent.fork()]
    swapped = space.swap_out(group)
    assert (pool.num_free, space.num_used) == (8, 3)
    assert len(space.take_moves()[0]) == 3
    space.swap_in(zip(group, swapped, [[], [], []], strict=True))
    assert (pool.num_free, len({tuple(table.blocks) for table in group})) == (5, 1)
    check_integrity(pool, group)
    out, back = space.take_moves()
    assert (len(out), len(back), space.num_used) == (0, 3, 0)


def test_what_is_known_on_the_device_is_not_moved_even_if_it_is_next_to_be_evicted() -> None:
    pool = BlockPool(3, 4)
    space = SwapSpace(pool, 3)
    table = BlockTable(pool)
    table.extend(12)
    first = int(table.blocks[0])
    assert pool.index.add(None, (1, 2, 3, 4), first) is not None
    [swapped] = space.swap_out([table])
    space.take_moves()
    assert pool.num_cached == 1
    space.swap_in([(table, swapped, [first])])
    assert table.blocks[0] == first
    _, back = space.take_moves()
    assert len(back) == 2
    check_integrity(pool, [table])


def test_copies_that_have_not_run_leave_from_their_source() -> None:
    pool = BlockPool(4, 4)
    space = SwapSpace(pool, 4)
    parent = BlockTable(pool)
    parent.extend(2)
    pool.take_copies()
    child = parent.fork()
    child.extend(1)  # queues a copy of the shared block
    child.truncate(2)
    space.swap_out([child])
    out, _ = space.take_moves()
    assert out[:, 0].tolist() == parent.blocks.tolist()
    assert not len(pool.take_copies())


def test_who_leaves_takes_no_host_block_that_is_still_to_be_read() -> None:
    pool = BlockPool(4, 1)
    space = SwapSpace(pool, 2)
    memory = SwappedMemory(pool, space)
    first, second = BlockTable(pool), BlockTable(pool)
    first.extend(1)
    second.extend(1)
    memory.run({first: [7], second: [8]}, {first: 0, second: 0})
    [of_first] = space.swap_out([first])
    memory.run({}, {})
    space.swap_in([(first, of_first, [])])
    assert not space.can_hold([first])  # its contents are not on the device yet
    assert space.can_hold([second])
    [of_second] = space.swap_out([second])
    memory.run({}, {})
    space.swap_in([(second, of_second, [])])
    memory.run({}, {})
    assert (memory.read(first), memory.read(second)) == ([7], [8])
    assert space.num_used == 0
