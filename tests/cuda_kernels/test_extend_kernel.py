"""Attention of chunks on tensor cores: real PTX, in the interpreter, against float64."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cuda_kernels.element_type import FLOAT32
from cuda_kernels.extend import compile_extend
from tests.cuda_kernels.attention_problem import Problem, Rule, Shape, check, run_extend

BLOCK_SIZES = st.sampled_from([8, 16, 32, 64, 128])
CHUNKS = st.lists(
    (st.integers(1, 600) | st.integers(1, 70)).flatmap(
        lambda context: st.tuples(st.just(context), st.integers(1, min(context, 60)))
    ),
    min_size=1,
    max_size=3,
)
WINDOWS = st.sampled_from([0, 0, 1, 17, 100])
DRAWN = settings(
    max_examples=4, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=[HealthCheck.too_slow]
)


def check_extend(variant: tuple[str, int, int, int], chunks: list[tuple[int, int]], block_size: int, window: int,
                 softcap: float, are_consecutive: bool, seed: int) -> None:  # fmt: skip
    kind, head_dim, num_kv_heads, group_size = variant
    shape = Shape(kind, head_dim, num_kv_heads, group_size, block_size)
    problem = Problem(shape, chunks, are_consecutive=are_consecutive, seed=seed)
    rule = Rule(window, softcap)
    check(problem, rule, run_extend(problem, rule))


@DRAWN
@given(CHUNKS, BLOCK_SIZES, WINDOWS, st.booleans(), st.integers(0, 1000))
def test_bfloat16(chunks: list[tuple[int, int]], block_size: int, window: int, run: bool, seed: int) -> None:
    check_extend(("bfloat16", 64, 2, 3), chunks, block_size, window, 0.0, run, seed)


@DRAWN
@given(CHUNKS, BLOCK_SIZES, WINDOWS, st.booleans(), st.integers(0, 1000))
def test_float16_with_softcap(
    chunks: list[tuple[int, int]], block_size: int, window: int, run: bool, seed: int
) -> None:
    check_extend(("float16", 80, 1, 1), chunks, block_size, window, 5.0, run, seed)


def test_float32_is_refused() -> None:
    with pytest.raises(ValueError, match="tensor cores do not multiply float32"):
        compile_extend(FLOAT32, 64)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_every_format_and_head_size(kind: str, head_dim: int, softcap: float) -> None:
    for group_size, window in ((1, 0), (4, 0), (7, 90), (16, 0)):
        chunks = [(150, 20), (33, 33), (1, 1), (90, 1)]
        check_extend((kind, head_dim, 2, group_size), chunks, 16, window, softcap, group_size == 4, head_dim)
