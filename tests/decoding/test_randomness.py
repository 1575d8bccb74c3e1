"""The counter-based random numbers against the documented mix, written down a second time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chatserve.decoding import derive_seed
from chatserve.engine.sampling_kernels import uniforms
from tests.decoding.naive import fork_key, mix, uniform

words = st.integers(0, 2**64 - 1)


@given(counters=st.lists(st.tuples(words, words, words, words), min_size=1, max_size=20))
def test_uniforms_are_the_documented_mix_whatever_else_is_in_the_batch(
    counters: list[tuple[int, int, int, int]],
) -> None:
    assert uniforms(np.array(counters, np.uint64)).tolist() == [uniform(*counter) for counter in counters]


def test_split_mix_gives_the_published_values() -> None:
    """The first outputs of SplitMix64 seeded with 1234567 (as in the reference implementation's test vector)."""
    golden, state, outputs = 0x9E3779B97F4A7C15, 1234567, []
    for _ in range(3):
        state = (state + golden) & (2**64 - 1)
        outputs.append(mix(state))
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(seed=st.integers(-(2**70), 2**70), index=st.integers(1, 2**41))
def test_seeds_are_derived_as_documented(seed: int, index: int) -> None:
    assert derive_seed(seed, 0) == seed % 2**64
    assert derive_seed(seed, index) == derive_seed(seed % 2**64, index) == fork_key(seed % 2**64, index)


def test_uniforms_are_spread_evenly_in_every_coordinate() -> None:
    """Chi-squared over 64 bins, for counters that differ in one word only, as those of a request do."""
    for column in range(4):
        counters = np.full((64_000, 4), 7, np.uint64)
        counters[:, column] = np.arange(64_000)
        numbers = uniforms(counters)
        assert 0 <= numbers.min() < numbers.max() < 1
        counts = np.histogram(numbers, 64, (0, 1))[0]
        assert ((counts - 1000.0) ** 2 / 1000).sum() < 125  # p = 5e-6 at 63 degrees of freedom
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02


def test_nearby_counters_are_unrelated() -> None:
    seeds = [derive_seed(seed, index) for seed in range(40) for index in range(40)]
    counters = [(key, 0, position, 0) for key in seeds for position in range(8)]
    numbers = uniforms(np.array(counters, np.uint64)).reshape(-1, 8)
    assert len(np.unique(numbers)) == numbers.size
    correlations = np.corrcoef(numbers.T) - np.eye(8)
    assert np.abs(correlations).max() < 0.12
