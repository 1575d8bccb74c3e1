"""The paper's worked examples, block by block: Figures 6, 8 and 9 (block size 4)."""

from chatserve.kv import BlockPool, BlockTable, check_integrity


def test_figure_6_filled_slots_of_one_request() -> None:
    table = BlockTable(BlockPool(num_blocks=9, block_size=4))
    table.extend(7)
    assert table.filled == [4, 3]
    table.extend(1)
    assert table.filled == [4, 4]
    table.extend(1)
    assert table.filled == [4, 4, 1]


def test_figure_8_parallel_sampling_copies_the_last_prompt_block_once() -> None:
    pool = BlockPool(num_blocks=9, block_size=4)
    first = BlockTable(pool)
    first.extend(7)
    second = first.fork()
    shared, partial = first.blocks.tolist()
    assert pool.ref_counts[[shared, partial]].tolist() == [2, 2]

    first.extend(1)  # writes into a shared block: copy-on-write
    copied = first.blocks.tolist()[1]
    second.extend(1)  # is the only holder by now: writes in place

    assert pool.take_copies().tolist() == [[partial, copied]]
    assert second.blocks.tolist() == [shared, partial]
    assert first.blocks.tolist() == [shared, copied]
    assert pool.ref_counts[[shared, partial, copied]].tolist() == [2, 1, 1]
    check_integrity(pool, [first, second])


def test_figure_9_beam_search_shares_a_tree_and_frees_dropped_branches() -> None:
    pool = BlockPool(num_blocks=13, block_size=4)
    root = BlockTable(pool)
    root.extend(4)  # block 0
    left, right = root.fork(), root.fork()
    root.free()
    left.extend(4)  # block 1: shared by candidates 0 to 2
    right.extend(4)  # block 2: candidate 3
    candidates = [left, left.fork(), left.fork(), right]
    for candidate in candidates:
        candidate.extend(4)
    for candidate in candidates:
        candidate.extend(4)
    before = [candidate.blocks.tolist() for candidate in candidates]
    assert pool.num_used == 3 + 4 + 4

    survivors = [candidates[1].fork(), candidates[1].fork(), candidates[2].fork(), candidates[2].fork()]
    for candidate in candidates:
        candidate.free()
    dropped = [*before[0][2:], *before[3][1:]]  # candidates 0 and 3 had these to themselves
    assert pool.ref_counts[dropped].tolist() == [0] * len(dropped)
    for survivor in survivors:
        survivor.extend(1)
    after = [survivor.blocks.tolist() for survivor in survivors]
    assert after[0][:4] == after[1][:4] == before[1]
    assert after[2][:4] == after[3][:4] == before[2]
    assert len({blocks[4] for blocks in after}) == 4
    assert pool.ref_counts[before[1][0]] == 4
    assert len(pool.take_copies()) == 0
    check_integrity(pool, survivors)
