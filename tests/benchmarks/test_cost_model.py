"""The cost model's arithmetic, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.paper.cost import CostModel, StepWork
from benchmarks.paper.paged import blocks_saved, work_of
from benchmarks.paper.served_model import MODELS, OPT_13B
from chatserve.models.batch import Batch


@pytest.mark.parametrize(
    ("name", "kv_bytes", "num_slots"),
    [("OPT-13B", 819_200, 15_700), ("OPT-66B", 2_359_296, 9_700), ("OPT-175B", 4_718_592, 60_100)],
)
def test_sizes_are_those_of_the_papers_table_1(name: str, kv_bytes: int, num_slots: int) -> None:
    model = MODELS[name]
    assert model.kv_bytes_per_token == kv_bytes
    assert model.num_slots == pytest.approx(num_slots, rel=0.02)


def test_a_decode_step_reads_the_weights_once_and_all_kv() -> None:
    work = StepWork(num_tokens=30, num_attended=15_000)
    seconds = 26e9 / 1.3e12 + 15_000 * 819_200 / 1.3e12 + 30 * 26e9 / 156e12
    assert CostModel(OPT_13B).seconds(work) == pytest.approx(seconds)


def test_paged_attention_costs_a_quarter_more_at_16_tokens_a_block() -> None:
    work = StepWork(num_attended=16_000, num_blocks=1000)
    paged = CostModel(OPT_13B, 16).read_bytes(work)
    assert paged / CostModel(OPT_13B).read_bytes(StepWork(num_attended=16_000)) == pytest.approx(1.23 + 0.5 / 16)


def test_prefills_compute() -> None:
    work = StepWork(num_tokens=1000, num_pairs=500_500)
    flops = 2 * 13e9 * 1000 + 4 * 40 * 5120 * 500_500
    assert CostModel(OPT_13B).flop_count(work) == pytest.approx(flops)
    assert CostModel(OPT_13B).recompute_seconds(1000) == pytest.approx(flops / 156e12)


def test_swapping_pays_for_bytes_and_for_each_transfer() -> None:
    """80 transfers a block: keys and values of 40 layers."""
    seconds = 10 * 16 * 819_200 / 25e9 + 10 * 80 * 4e-6
    assert CostModel(OPT_13B, 16).swap_seconds(10) == pytest.approx(seconds)
    assert CostModel(OPT_13B, 16).seconds(StepWork(num_swapped_blocks=10)) == pytest.approx(seconds + 26e9 / 1.3e12)


def _batch() -> Batch:
    """A prefill of 5 tokens, a chunk of tokens 6 to 8, and two decodes that share their first block (of 4 tokens)."""
    return Batch(
        token_ids=np.zeros(10, np.int32),
        positions=np.array([0, 1, 2, 3, 4, 5, 6, 7, 6, 5], np.int32),
        slots=np.zeros(10, np.int32),
        query_starts=np.array([0, 5, 8, 9, 10], np.int32),
        context_lens=np.array([5, 8, 7, 6], np.int32),
        block_tables=np.array([[0, 1], [2, 3], [4, 5], [4, 6]], np.int32),
        wanted=np.zeros(0, np.int32),
        copies=np.array([[5, 6]], np.int32),
        swap_in=np.array([[0, 2]], np.int32),
    )


def test_the_work_of_a_batch() -> None:
    work = work_of(_batch(), 4)
    assert work == StepWork(
        num_tokens=10,
        num_attended=7 + 6,
        num_pairs=(1 + 2 + 3 + 4 + 5) + (6 + 7 + 8),
        num_blocks=4,
        num_copied=4,
        num_swapped_blocks=1,
    )


def test_blocks_that_sharing_saves() -> None:
    assert blocks_saved(_batch(), 4) == (8, 1)
