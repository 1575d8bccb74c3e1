"""The fake KV cache accepts right batches and names what is wrong with others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from chatserve.models.batch import Batch, Int32Array
from chatserve.testing.pages import Pages

BLOCK_SIZE = 4


def ints(values: Any) -> Int32Array:
    return np.asarray(values, np.int32)


def pairs(*found: tuple[int, int]) -> Int32Array:
    return ints(found).reshape(-1, 2)


def make_batch(*chunks: tuple[list[int], int, list[int]], **moves: Int32Array) -> Batch:
    """Chunks of (tokens, position of the first, block table); the logits of each last token are wanted."""
    width = max(len(table) for _, _, table in chunks)
    positions = [start + i for tokens, start, _ in chunks for i in range(len(tokens))]
    tables = [table for tokens, _, table in chunks for _ in tokens]
    ends = np.cumsum([len(tokens) for tokens, _, _ in chunks])
    return Batch(
        token_ids=ints([token for tokens, _, _ in chunks for token in tokens]),
        positions=ints(positions),
        slots=ints([t[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p, t in zip(positions, tables, strict=True)]),
        query_starts=ints([0, *ends]),
        context_lens=ints([start + len(tokens) for tokens, start, _ in chunks]),
        block_tables=ints([table + [0] * (width - len(table)) for _, _, table in chunks]),
        wanted=ints(ends - 1),
        **moves,
    )


@pytest.fixture
def pages() -> Pages:
    """Blocks 3 and 1 hold the tokens 10 to 15 of one sequence."""
    pages = Pages(num_blocks=6, block_size=BLOCK_SIZE, num_host_blocks=3)
    pages.run(make_batch(([10, 11, 12, 13, 14, 15], 0, [3, 1])))
    return pages


def test_contexts_are_read_back_through_the_tables(pages: Pages) -> None:
    read = pages.run(make_batch(([16], 6, [3, 1]), ([20, 21], 0, [5])))
    assert read.tolist() == [[10, 11, 12, 13, 14, 15, 16], [20, 21, 0, 0, 0, 0, 0]]


def test_blocks_may_be_shared_and_copied_on_write(pages: Pages) -> None:
    read = pages.run(make_batch(([16], 6, [3, 1]), ([17], 6, [3, 2]), copies=pairs((1, 2))))
    assert read[:, 4:].tolist() == [[14, 15, 16], [14, 15, 17]]


def test_copies_see_what_was_there_before_the_writes(pages: Pages) -> None:
    pages.run(make_batch(([16], 6, [3, 1]), copies=pairs((1, 2))))
    assert pages.run(make_batch(([17], 6, [3, 2])))[0].tolist() == [10, 11, 12, 13, 14, 15, 17]
    with pytest.raises(AssertionError, match="chunk 0: a slot of its context was never written"):
        pages.run(make_batch(([18], 7, [3, 4]), copies=pairs((0, 4))))


def test_swaps_run_before_copies(pages: Pages) -> None:
    pages.run(make_batch(([20], 0, [1]), swap_out=pairs((3, 0), (1, 2))))
    read = pages.run(make_batch(([16], 6, [0, 5]), swap_in=pairs((0, 0), (2, 4)), copies=pairs((4, 5))))
    assert read.tolist() == [[10, 11, 12, 13, 14, 15, 16]]


def test_a_block_can_be_swapped_out_and_another_in_at_once(pages: Pages) -> None:
    pages.run(make_batch(([20, 21], 0, [0])))
    pages.run(make_batch(([22], 0, [5]), swap_out=pairs((0, 1))))
    read = pages.run(make_batch(([22], 2, [1]), swap_out=pairs((1, 0)), swap_in=pairs((1, 1))))
    assert read.tolist() == [[20, 21, 22]]


def test_a_position_can_be_run_again_without_writing(pages: Pages) -> None:
    batch = make_batch(([15], 5, [3, 1]))
    assert pages.run(replace(batch, slots=ints([-1])))[0].tolist() == [10, 11, 12, 13, 14, 15]
    with pytest.raises(AssertionError, match="chunk 0: its pages hold other tokens"):
        pages.run(replace(batch, slots=ints([-1]), token_ids=ints([99])))


def test_a_chunk_may_read_what_another_writes_in_the_same_step(pages: Pages) -> None:
    read = pages.run(make_batch(([16, 17], 6, [3, 1]), ([18], 8, [3, 1, 4])))
    assert read[1].tolist() == [*range(10, 19)]


def test_a_slot_that_was_never_written(pages: Pages) -> None:
    with pytest.raises(AssertionError, match="chunk 1: a slot of its context was never written"):
        pages.run(make_batch(([20], 0, [0]), ([17], 7, [3, 1])))


def test_a_block_at_another_place_of_the_table(pages: Pages) -> None:
    with pytest.raises(AssertionError, match="chunk 0: a slot holds another position"):
        pages.run(make_batch(([16], 8, [3, 3, 0])))


def test_a_block_of_another_sequence(pages: Pages) -> None:
    pages.run(make_batch(([30, 31, 32, 33, 14, 15], 0, [0, 2])))  # the same tokens in its second block
    with pytest.raises(AssertionError, match="chunk 0: a slot was computed behind other tokens"):
        pages.run(make_batch(([16], 6, [3, 2])))


def test_a_shared_block_that_was_written_without_copying(pages: Pages) -> None:
    pages.run(make_batch(([16, 17, 18], 6, [3, 1, 4])))
    pages.run(make_batch(([26], 6, [3, 1])))  # a fork of the first 6 tokens overwrites token 16
    with pytest.raises(AssertionError, match="chunk 0: a slot was computed behind other tokens"):
        pages.run(make_batch(([19], 9, [3, 1, 4])))


def test_consistent_pages_of_another_sequence_show_in_the_context(pages: Pages) -> None:
    pages.run(make_batch(([16], 6, [3, 1])))
    pages.run(make_batch(([26], 6, [3, 1])))  # as above, but nothing was computed behind token 16 yet
    assert pages.run(make_batch(([17], 7, [3, 1])))[0, 6:].tolist() == [26, 17]


RIGHT = make_batch(([16], 6, [3, 1]), ([20, 21], 0, [5]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": ints([5, 0, 1])}, "chunk 0: positions"),
        ({"slots": ints([6, 20, 20])}, "chunk 1: a slot is not where"),
        ({"block_tables": ints([[3, 1], [6, 0]])}, "chunk 1: its block table names"),
        ({"block_tables": ints([[3, -1], [5, 0]])}, "chunk 0: its block table names"),
        ({"query_starts": ints([0, 0, 3])}, "chunk 0: it has no tokens"),
        ({"query_starts": ints([0, 1, 2])}, "query_starts"),
        ({"query_starts": ints([0, 3])}, "numbers of chunks"),
        ({"slots": ints([6, 20])}, "differ in length"),
        ({"wanted": ints([3])}, "outside the tokens"),
        ({"wanted": ints([2, 0])}, "not ascending"),
        ({"copies": pairs((0, 6))}, "copy: a target block"),
        ({"copies": pairs((-1, 0))}, "copy: a source block"),
        ({"copies": pairs((3, 0), (1, 0))}, "copy: a block is the target of two"),
        ({"copies": pairs((3, 0), (0, 2))}, "copy: a block is source and target"),
        ({"swap_out": pairs((3, 3))}, "swap out: a target block"),
        ({"swap_in": pairs((3, 0))}, "swap in: a source block"),
    ],
)
def test_malformed_batches(pages: Pages, changes: dict[str, Int32Array], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        pages.run(replace(RIGHT, **changes))
    # Only copies and swaps run before the check, and these were refused: nothing has changed.
    assert pages.run(RIGHT)[0].tolist() == [10, 11, 12, 13, 14, 15, 16]


def test_a_slot_written_twice(pages: Pages) -> None:
    with pytest.raises(AssertionError, match="written twice"):
        pages.run(make_batch(([16], 6, [3, 1]), ([16], 6, [3, 1])))
