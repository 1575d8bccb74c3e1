"""Random forks, writes, truncations and frees against token lists, with simulated block contents."""

from __future__ import annotations

import random
from copy import deepcopy
from itertools import permutations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chatserve.kv import BlockPool, BlockTable, IntegrityError, OutOfBlocksError, check_integrity

_NEVER = -1


class Memory:
    """What the blocks hold: slots of tokens, changed only by a step's copies and then its writes."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.slots = np.full((pool.num_blocks, pool.block_size), _NEVER)

    def run(self, written: dict[BlockTable, list[int]], first_new: dict[BlockTable, int]) -> None:
        """One step: all copies at once, then the tokens from `first_new` on."""
        copies = self.pool.take_copies()
        sources, targets = copies[:, 0], copies[:, 1]
        assert len(set(targets.tolist())) == len(targets), "a block is copied into twice"
        assert not set(sources.tolist()) & set(targets.tolist()), "the order of the copies would matter"
        assert (self.pool.ref_counts[targets] > 0).all(), "a copy into a block that nobody holds"
        self.slots[targets] = self.slots[sources]
        for table, tokens in written.items():
            for position in range(first_new[table], table.num_tokens):
                block, slot = divmod(position, self.pool.block_size)
                physical = table.blocks[block]
                assert self.pool.ref_counts[physical] == 1, "a write into a shared block"
                self.slots[physical, slot] = tokens[position]

    def read(self, table: BlockTable) -> list[int]:
        tokens: list[int] = self.slots[table.blocks].reshape(-1)[: table.num_tokens].tolist()
        return tokens


class Tables(RuleBasedStateMachine):
    """A few tables over a small pool; each is compared with a plain list of tokens after every step.

    Between two steps anything may happen, except that a slot that was made since the last step cannot be forked or
    adopted: its contents are not there yet.
    """

    @initialize(
        block_size=st.sampled_from([1, 4, 16]), num_blocks=st.integers(2, 20), choices=st.randoms(use_true_random=False)
    )
    def start(self, block_size: int, num_blocks: int, choices: random.Random) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.memory = Memory(self.pool)
        self.tokens: dict[BlockTable, list[int]] = {}
        self.first_new: dict[BlockTable, int] = {}  # of those extended since the last step
        self.choices = choices
        self.num_made = 0

    def pick(self, *, settled: bool = False) -> BlockTable | None:
        tables = [table for table in self.tokens if not (settled and table in self.first_new)]
        return self.choices.choice(tables) if tables else None

    @rule()
    def make(self) -> None:
        if len(self.tokens) < 6:
            self.tokens[BlockTable(self.pool)] = []

    @rule(num_new=st.integers(0, 20))
    def extend(self, num_new: int) -> None:
        table = self.pick()
        if table is None:
            return
        num_free, num_needed = self.pool.num_free, table.num_needed(num_new)
        if num_needed > num_free:
            return
        self.first_new.setdefault(table, table.num_tokens)
        table.extend(num_new)
        assert self.pool.num_free == num_free - num_needed
        self.num_made += num_new
        self.tokens[table] += range(self.num_made, self.num_made + num_new)

    @rule()
    def fork(self) -> None:
        parent = self.pick(settled=True)
        if parent is not None and len(self.tokens) < 6:
            num_free = self.pool.num_free
            self.tokens[parent.fork()] = self.tokens[parent][:]
            assert self.pool.num_free == num_free

    @rule(fraction=st.floats(0, 1))
    def truncate(self, fraction: float) -> None:
        table = self.pick()
        if table is not None:
            length = round(fraction * table.num_tokens)
            table.truncate(length)
            del self.tokens[table][length:]
            if table in self.first_new:
                self.first_new[table] = min(self.first_new[table], length)

    @rule(fraction=st.floats(0, 1))
    def adopt(self, fraction: float) -> None:
        table, leader = self.pick(), self.pick(settled=True)
        if table is None or leader is None or table is leader:
            return
        length = round(fraction * leader.num_tokens)
        table.adopt(leader, length)
        self.tokens[table] = self.tokens[leader][:length]
        self.first_new.pop(table, None)

    @rule()
    def free(self) -> None:
        table = self.pick()
        if table is not None:
            table.free()
            assert (table.num_tokens, table.num_blocks, table.filled) == (0, 0, [])
            self.tokens[table] = []
            self.first_new.pop(table, None)
            if self.choices.random() < 0.5:
                del self.tokens[table]

    @precondition(lambda self: bool(self.tokens))
    @rule()
    def step(self) -> None:
        written = {table: tokens for table, tokens in self.tokens.items() if table in self.first_new}
        self.memory.run(written, self.first_new)
        self.first_new = {}
        for table, tokens in self.tokens.items():
            assert self.memory.read(table) == tokens

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "pool"):
            check_integrity(self.pool, self.tokens)
            size = self.pool.block_size
            for table, tokens in self.tokens.items():
                assert table.num_tokens == len(tokens)
                assert sum(table.filled) == len(tokens)
                assert table.filled[:-1] == [size] * (table.num_blocks - 1)

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for table in self.tokens:
                table.free()
            assert self.pool.num_free == self.pool.num_blocks  # no copy is left that a block would wait for
            assert len(self.pool.take_copies()) == 0


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_ten_thousand_forks_appends_frees_and_aborts() -> None:
    """Block 4, pool 16, up to 6 sequences; a dict of lists is the oracle (case d5)."""
    choices = random.Random(5)
    pool = BlockPool(num_blocks=16, block_size=4)
    memory, lists = Memory(pool), dict[BlockTable, list[int]]()
    for number in range(10_000):
        table = choices.choice([*lists, BlockTable(pool)] if len(lists) < 6 else list(lists))
        action = choices.choice(("fork", "append", "append", "append", "free", "abort"))
        if action == "fork" and len(lists) < 6 and table in lists:
            lists[table.fork()] = lists[table][:]
        elif action == "append" and table.num_needed(1) <= pool.num_free:
            others = {other: memory.read(other) for other in lists if other is not table}
            table.extend(1)
            lists.setdefault(table, []).append(number)
            memory.run({table: lists[table]}, {table: table.num_tokens - 1})
            assert all(memory.read(other) == contents for other, contents in others.items())
        elif action == "free" and table in lists:
            table.free()
            del lists[table]
        elif action == "abort" and number % 40 == 0:
            for aborted in lists:
                aborted.free()
            lists.clear()
        holders = np.zeros(pool.num_blocks, np.int64)
        for other in lists:
            holders[other.blocks] += 1
        assert pool.ref_counts.tolist() == holders.tolist()
        assert pool.num_free == np.count_nonzero(holders == 0)
        assert all(memory.read(other) == tokens for other, tokens in lists.items())
    for table in lists:
        table.free()
    assert pool.num_free == 16


def test_releasing_twice_raises_and_harms_nothing() -> None:
    pool = BlockPool(num_blocks=4, block_size=4)
    table = BlockTable(pool)
    table.extend(8)
    blocks = table.blocks.copy()
    table.free()
    with pytest.raises(ValueError, match="released twice"):
        pool.release(blocks)
    held = BlockTable(pool)
    held.extend(4)
    free = next(block for block in range(4) if pool.ref_counts[block] == 0)
    with pytest.raises(ValueError, match=rf"released twice: \[{free}\]"):
        pool.release(np.array([held.blocks[0], free], np.int32))  # one held, one free: neither changes
    check_integrity(pool, [held])
    assert pool.num_free == 3


def test_an_empty_pool_refuses_and_stays_sound() -> None:
    pool = BlockPool(num_blocks=2, block_size=4)
    table = BlockTable(pool)
    table.extend(8)
    assert table.num_needed(1) == 1
    with pytest.raises(OutOfBlocksError):
        pool.allocate()
    check_integrity(pool, [table])


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (-1, 4), (4, 0), (4, 3), (4, 512), (4, -16)])
def test_impossible_sizes_are_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match=f"{num_blocks if num_blocks < 1 else block_size}"):
        BlockPool(num_blocks, block_size)


def test_a_block_freed_in_the_step_that_copies_it_is_not_handed_out_before_the_copy() -> None:
    pool = BlockPool(num_blocks=3, block_size=4)
    first = BlockTable(pool)
    first.extend(2)
    second = first.fork()
    second.extend(1)
    source = int(first.blocks[0])
    first.free()
    others = BlockTable(pool)
    others.extend(4)
    assert source not in others.blocks.tolist()
    assert pool.num_free == 0
    assert pool.take_copies().tolist() == [[source, int(second.blocks[0])]]
    assert pool.num_free == 1


def test_a_copy_into_a_block_freed_in_the_same_step_is_forgotten() -> None:
    pool = BlockPool(num_blocks=2, block_size=4)
    first = BlockTable(pool)
    first.extend(2)
    second = first.fork()
    second.extend(1)
    second.free()
    assert len(pool.take_copies()) == 0
    second.extend(4)  # the same block again, for something else
    assert len(pool.take_copies()) == 0
    check_integrity(pool, [first, second])


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_a_copy_source_is_free_as_soon_as_no_copy_waits_for_it(order: tuple[int, ...]) -> None:
    """One owner and three forks that each copied its last block; they are freed in any order, in the same step."""
    pool = BlockPool(num_blocks=4, block_size=4)
    tables = [BlockTable(pool)]
    tables[0].extend(2)
    tables += [tables[0].fork() for _ in range(3)]
    for table in tables[1:]:
        table.extend(1)
    source = int(tables[0].blocks[0])
    copied = {number: int(tables[number].blocks[0]) for number in (1, 2, 3)}
    live = dict(enumerate(tables))
    for number in order:
        live.pop(number).free()
        waiting = 0 not in live and bool(live)  # the source has no holder, but somebody's copy is not made yet
        assert pool.num_free == 4 - len(live) - waiting
        assert pool.num_deferred == waiting
        check_integrity(pool, live.values())
        if len(live) == 2:
            expected = {(source, copied[left]) for left in live if left}
            assert set(map(tuple, deepcopy(pool).take_copies().tolist())) == expected
    assert len(pool.take_copies()) == 0
    assert pool.num_free == 4


def test_a_block_that_waits_for_its_copy_is_free_once_the_copies_are_taken() -> None:
    pool = BlockPool(num_blocks=3, block_size=4)
    first = BlockTable(pool)
    first.extend(2)
    second = first.fork()
    second.extend(1)
    first.free()
    assert (pool.num_free, pool.num_deferred) == (1, 1)
    pool.take_copies()
    assert (pool.num_free, pool.num_deferred) == (2, 0)
    second.free()  # its copy was made: nothing waits
    assert (pool.num_free, pool.num_deferred) == (3, 0)


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (lambda pool, table: pool.share(table.blocks), "is named 1 times, its count is 2"),
        (lambda pool, table: pool.release(table.blocks), "is named 1 times, its count is 0"),
        (lambda pool, table: setattr(table, "num_tokens", 9), "a table of 9 tokens has 1 blocks"),
        (lambda pool, table: pool._free.pop(), "the free list is not the set"),
        (lambda pool, table: pool._free.append(pool._free[0]), "a block is free twice"),
    ],
)
def test_the_integrity_check_finds_corruption(corrupt, message: str) -> None:  # type: ignore[no-untyped-def]
    pool = BlockPool(num_blocks=4, block_size=4)
    table = BlockTable(pool)
    table.extend(3)
    check_integrity(pool, [table])
    corrupt(pool, table)
    with pytest.raises(IntegrityError, match=message):
        check_integrity(pool, [table])
