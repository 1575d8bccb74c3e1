"""The CPU kernels against float64 NumPy, and bit for bit against themselves under other batches, chunks and blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from chatserve.models.attention_backend import AttentionRule
from chatserve.models.attention_shape import AttentionShape
from chatserve.models.batch import Batch
from chatserve.models.pages import CpuPages
from tests.models.attention_reference import Problem, attend_naively, history_of, make_problem

LENGTHS = st.integers(1, 200).flatmap(lambda context: st.tuples(st.just(context), st.integers(1, context)))
HEADS = st.sampled_from([(9, 3), (4, 4), (8, 1), (2, 1), (10, 2)])


def run_kernels(problem: Problem, history: Batch, block_size: int, rule: AttentionRule) -> NDArray[np.float32]:
    """The kernels' answer: older tokens are written by a first step, then the step attends."""
    num_query_heads, num_kv_heads, head_dim = problem.query.shape[1], problem.key.shape[1], problem.query.shape[2]
    pages = CpuPages(AttentionShape(1, num_query_heads, num_kv_heads, head_dim))
    pages.allocate(int(problem.batch.block_tables.max()) + 300, block_size, 0)
    older_key, older_value = history_of(problem)
    if len(older_key):
        pages.begin(history)
        query = torch.zeros(len(older_key), num_query_heads, head_dim)
        pages.attend(0, query, torch.from_numpy(older_key), torch.from_numpy(older_value), rule)
    pages.begin(problem.batch)
    return attend(pages, problem, rule)


def attend(pages: CpuPages, problem: Problem, rule: AttentionRule) -> NDArray[np.float32]:
    query, key, value = (torch.from_numpy(numbers) for numbers in (problem.query, problem.key, problem.value))
    out: NDArray[np.float32] = pages.attend(0, query, key, value, rule).numpy()
    return out


@settings(max_examples=60)
@given(
    lengths=st.lists(LENGTHS, min_size=1, max_size=4),
    heads=HEADS,
    head_dim=st.sampled_from([1, 8, 20, 24, 64, 80]),
    block_size=st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128, 256]),
    window=st.sampled_from([0, 0, 1, 5, 16, 100]),
    softcap=st.sampled_from([0.0, 0.0, 1.5]),
    seed=st.integers(0, 1000),
)
def test_equals_plain_attention(
    lengths: list[tuple[int, int]], heads: tuple[int, int], head_dim: int, block_size: int, window: int, softcap: float,
    seed: int,
) -> None:  # fmt: skip
    problem, history = make_problem(lengths, heads, head_dim, block_size, seed)
    rule = AttentionRule(head_dim**-0.5, window, softcap)
    out = run_kernels(problem, history, block_size, rule)
    np.testing.assert_allclose(out, attend_naively(problem, *rule), rtol=0, atol=3e-6)


@settings(max_examples=30)
@given(
    context=st.integers(2, 300),
    cut=st.floats(0, 1),
    block_size=st.sampled_from([1, 4, 16, 64]),
    other_block_size=st.sampled_from([2, 8, 16, 256]),
    window=st.sampled_from([0, 7, 70]),
    seed=st.integers(0, 1000),
)
def test_a_row_has_the_same_bits_in_any_batch_chunk_and_block_size(
    context: int, cut: float, block_size: int, other_block_size: int, window: int, seed: int
) -> None:
    """The same sequence: computed at once and alone, or its last tokens as a later chunk between other sequences."""
    rule = AttentionRule(0.2, window)
    whole, whole_history = make_problem([(context, context)], (6, 2), 24, block_size, seed)
    expected = run_kernels(whole, whole_history, block_size, rule)

    count = max(1, int(context * cut))
    crowd, crowd_history = make_problem([(33, 5), (context, count), (90, 1)], (6, 2), 24, other_block_size, seed + 1)
    crowd.contexts[1] = whole.contexts[0]
    crowd.query[5 : 5 + count] = whole.query[-count:]
    key, value = whole.contexts[0]
    crowd.key[5 : 5 + count], crowd.value[5 : 5 + count] = key[-count:], value[-count:]
    out = run_kernels(crowd, crowd_history, other_block_size, rule)
    np.testing.assert_array_equal(out[5 : 5 + count], expected[-count:])


def test_strided_inputs_need_no_copy() -> None:
    problem, history = make_problem([(40, 40)], (4, 2), 16, 16, seed=0)
    rule = AttentionRule(0.25)
    expected = run_kernels(problem, history, 16, rule)
    wide = np.zeros((40, 4, 32), np.float32)
    wide[:, :, ::2] = problem.query
    problem.query = wide[:, :, ::2]
    np.testing.assert_array_equal(run_kernels(problem, history, 16, rule), expected)


def test_large_scores_do_not_overflow() -> None:
    problem, history = make_problem([(100, 100)], (2, 1), 8, 16, seed=0)
    problem.query *= 1e4
    out = run_kernels(problem, history, 16, AttentionRule(1.0))
    np.testing.assert_allclose(out, attend_naively(problem, 1.0, 0, 0.0), rtol=0, atol=2e-2)
    assert np.isfinite(out).all()


def test_garbage_of_an_earlier_owner_of_a_block_is_not_seen() -> None:
    """A block given back may hold anything, NaN too; slots past the context add nothing, not even NaN."""
    rule = AttentionRule(0.3)
    for block_size in (4, 16, 64):
        problem, _ = make_problem([(21, 21), (5, 5)], (3, 1), 16, block_size, seed=1)
        pages = CpuPages(AttentionShape(1, 3, 1, 16))
        num_blocks = int(problem.batch.block_tables.max()) + 300
        pages.allocate(num_blocks, block_size, 0)
        spoiler, _ = make_problem([(block_size * 8, block_size * 8)], (3, 1), 16, block_size, seed=2)
        spoiler.batch.block_tables[:] = np.unique(problem.batch.block_tables)[0] + np.arange(8)
        everything = torch.full((num_blocks * block_size, 1, 16), torch.nan)
        spoiler.batch.slots = np.arange(num_blocks * block_size, dtype=np.int32)
        pages.begin(spoiler.batch)
        pages.attend(0, torch.zeros(len(spoiler.query), 3, 16), everything, everything, rule)
        pages.begin(problem.batch)
        out = attend(pages, problem, rule)
        np.testing.assert_allclose(out, attend_naively(problem, *rule), rtol=0, atol=3e-6)


@pytest.mark.parametrize("token", [0, 20, 99])
def test_nan_of_the_own_sequence_is_not_hidden(token: int) -> None:
    problem, history = make_problem([(100, 100), (50, 50)], (2, 1), 8, 16, seed=4)
    problem.key[token] = np.nan
    out = run_kernels(problem, history, 16, AttentionRule(0.3))
    assert np.isnan(out[token:100]).all()
    assert np.isfinite(out[:token]).all()
    assert np.isfinite(out[100:]).all()


@pytest.mark.parametrize("num_threads", [1, 2])
def test_the_number_of_threads_changes_no_bit(num_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, history = make_problem([(130, 130), (64, 1), (17, 3)], (6, 2), 32, 16, seed=3)
    rule = AttentionRule(0.2)
    expected = run_kernels(problem, history, 16, rule)
    monkeypatch.setattr("torch.get_num_threads", lambda: num_threads)
    np.testing.assert_array_equal(run_kernels(problem, history, 16, rule), expected)
