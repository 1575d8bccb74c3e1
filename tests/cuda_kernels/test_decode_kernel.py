"""Decode attention's real PTX, in the interpreter, against float64."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cuda_kernels.decode import heads_per_block
from tests.cuda_kernels.attention_problem import Problem, Rule, Shape, check, run_decode
from tests.cuda_kernels.compiling import decode_kernel

BLOCK_SIZES = st.sampled_from([8, 16, 32, 64, 128])
CONTEXTS = st.lists(st.integers(1, 600) | st.integers(1, 40), min_size=1, max_size=3)
WINDOWS = st.sampled_from([0, 0, 1, 17, 100])
DRAWN = settings(
    max_examples=4, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=[HealthCheck.too_slow]
)


def check_decode(variant: tuple[str, int, int, int], contexts: list[int], block_size: int, window: int, softcap: float,
                 num_splits: int, are_consecutive: bool, seed: int) -> None:  # fmt: skip
    kind, head_dim, num_kv_heads, group_size = variant
    shape = Shape(kind, head_dim, num_kv_heads, group_size, block_size)
    problem = Problem(shape, [(context, 1) for context in contexts], are_consecutive=are_consecutive, seed=seed)
    rule = Rule(window, softcap, num_splits)
    check(problem, rule, run_decode(problem, rule, padding=seed % 3))


@DRAWN
@given(CONTEXTS, BLOCK_SIZES, WINDOWS, st.sampled_from([1, 1, 2, 5]), st.booleans(), st.integers(0, 1000))
def test_float32(contexts: list[int], block_size: int, window: int, num_splits: int, run: bool, seed: int) -> None:
    check_decode(("float32", 64, 2, 3), contexts, block_size, window, 0.0, num_splits, run, seed)


@DRAWN
@given(CONTEXTS, BLOCK_SIZES, WINDOWS, st.sampled_from([1, 1, 2, 5]), st.booleans(), st.integers(0, 1000))
def test_bfloat16(contexts: list[int], block_size: int, window: int, num_splits: int, run: bool, seed: int) -> None:
    check_decode(("bfloat16", 64, 1, 3), contexts, block_size, window, 0.0, num_splits, run, seed)


@DRAWN
@given(CONTEXTS, BLOCK_SIZES, WINDOWS, st.sampled_from([1, 1, 2, 5]), st.booleans(), st.integers(0, 1000))
def test_float16_with_softcap(
    contexts: list[int], block_size: int, window: int, num_splits: int, run: bool, seed: int
) -> None:
    """Head size 80 leaves lanes without a part of the row."""
    check_decode(("float16", 80, 2, 1), contexts, block_size, window, 5.0, num_splits, run, seed)


def test_a_group_larger_than_a_thread_block_serves() -> None:
    """Five query heads of a KV head, three to a thread block: the last of the second block is spare."""
    problem = Problem(Shape("float32", 64, 2, 5, 16), [(70, 1), (3, 1)], are_consecutive=False, seed=0)
    rule = Rule(num_splits=2)
    check(problem, rule, run_decode(problem, rule, kernel=decode_kernel("float32", 64, 3, False), num_parts=2))


@pytest.mark.parametrize(("group_size", "parts"), [(1, (1, 1)), (8, (1, 8)), (9, (2, 5)), (16, (2, 8)), (71, (9, 8))])
def test_how_large_groups_are_cut(group_size: int, parts: tuple[int, int]) -> None:
    assert heads_per_block(group_size) == parts


def test_several_tokens_of_a_chunk_are_rows_of_their_own() -> None:
    """How float32 chunks are served, which tensor cores would round."""
    problem = Problem(Shape("float32", 64, 2, 3, 16), [(70, 9), (4, 4)], are_consecutive=False, seed=3)
    check(problem, Rule(), run_decode(problem, Rule()))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("group_size", [1, 4, 7, 8, 11])
def test_every_format_head_size_and_group(kind: str, head_dim: int, group_size: int) -> None:
    for softcap in (0.0, 5.0):
        check_decode((kind, head_dim, 2, group_size), [200, 33, 1], 16, 0, softcap, 2, False, head_dim)
        check_decode((kind, head_dim, 2, group_size), [200, 33, 1], 32, 50, softcap, 1, True, head_dim)
