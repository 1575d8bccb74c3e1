"""The sampler against plain numpy: draws, filters, penalties, log-probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from chatserve.decoding import Sampling
from chatserve.decoding.wants import Warp
from chatserve.engine import sampler
from chatserve.engine.sampler import Processing, SamplingPlan

Row = NDArray[np.float32]
GREEDY = Warp(0.0, 0, 1.0, 0.0)


def test_greedy_takes_the_lowest_of_equal_maxima() -> None:
    logits = np.array([[0.0, 3.0, 3.0, 1.0]], np.float32)
    assert draw(logits, GREEDY) == [1]


def test_log_probabilities_are_of_the_processed_distribution_whatever_the_temperature() -> None:
    logits = np.log(np.array([[0.5, 0.25, 0.125, 0.125]], np.float32))
    plan = SamplingPlan()
    plan.add_draw(0, Warp(1e-8, 0, 1.0, 0.0), (1, 0, 0, 0))
    result = sampler.run(plan, logits)
    assert result.draw_tokens == [0]
    assert result.draw_logprobs[0] == pytest.approx(np.log(0.5), abs=1e-6)


@pytest.mark.parametrize("scale", [1.0, 60000.0])
def test_tiny_temperatures_are_greedy(scale: float) -> None:
    """The limit for T -> 0 is the argmax; nothing over- or underflows, in the range of fp16 logits too."""
    rng = np.random.default_rng(5)
    logits = (rng.permutation(1000) / 1000 * scale).astype(np.float32).reshape(1, -1)
    for temperature in (0.0, 1e-8, 1e-6, 1e-5):
        assert draw(logits, Warp(temperature, 0, 1.0, 0.0)) == [int(logits.argmax())]


@pytest.mark.parametrize(
    "warp",
    [
        Warp(1.0, 0, 1.0, 0.0),
        Warp(0.7, 3, 1.0, 0.0),
        Warp(1.3, 0, 0.6, 0.0),
        Warp(1.0, 0, 1.0, 0.2),
        Warp(2.0, 7, 0.8, 0.05),
        Warp(1.0, 1, 0.5, 0.0),
        Warp(1.0, 0, 1e-9, 0.0),
    ],
)
def test_draws_come_from_the_warped_distribution(warp: Warp) -> None:
    row = (np.random.default_rng(7).standard_normal(12) * 2).astype(np.float32)
    num_draws = 20_000
    plan = SamplingPlan()
    for ordinal in range(num_draws):
        plan.add_draw(0, warp, (9, 0, 3, ordinal))
    counts = np.bincount(sampler.run(plan, row[None].copy()).draw_tokens, minlength=12)
    expected = reference_distribution(row, warp)
    assert set(np.flatnonzero(counts)) <= set(np.flatnonzero(expected))
    assert np.abs(counts / num_draws - expected).max() < 4 * np.sqrt(0.25 / num_draws)


@given(
    seed=st.integers(0, 2**32),
    temperature=st.floats(0.05, 5.0),
    top_k=st.sampled_from([0, 1, 2, 50, 400]),
    top_p=st.floats(0.01, 1.0),
    min_p=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_a_draw_is_never_outside_what_the_filters_keep(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    row = (np.random.default_rng(seed).standard_normal(300) * 3).astype(np.float32)
    warp = Warp(temperature, top_k, top_p, min_p)
    kept = reference_distribution(row, warp) > 0
    for token in draw(np.repeat(row[None], 8, axis=0), warp):
        assert kept[token]


def test_full_rows_of_each_stage() -> None:
    """The first row is wanted as it is, the second processed and warped."""
    raw = np.random.default_rng(1).standard_normal((1, 50)).astype(np.float32)
    processing = Processing(Sampling(logit_bias={4: 5.0}, repetition_penalty=1.5), frozenset())
    plan = SamplingPlan(processed=[(1, processing, [4, 9], 1)])
    warp = Warp(0.5, 10, 0.9, 0.0)
    for number, stage in ((0, "raw"), (1, "processed"), (1, "warped")):
        plan.add_full(number, stage, warp)
    unprocessed, processed, warped = sampler.run(plan, np.repeat(raw, 2, axis=0)).full
    row = raw[0].copy()
    for token in (4, 9):
        row[token] = row[token] / 1.5 if row[token] > 0 else row[token] * 1.5
    row[4] += 5.0
    np.testing.assert_allclose(unprocessed, log_softmax(raw[0]), atol=1e-5)
    np.testing.assert_allclose(processed, log_softmax(row), atol=1e-5)
    np.testing.assert_allclose(np.exp(warped), reference_distribution(row, warp), atol=1e-5)


@pytest.mark.parametrize("k", [1, 5, 128, 129, 300])
def test_top_k_is_sorted_with_ties_by_lower_id(k: int) -> None:
    logits = np.random.default_rng(2).integers(0, 40, (3, 300)).astype(np.float32)
    plan = SamplingPlan()
    for row in range(3):
        plan.add_top(row, k)
    result = sampler.run(plan, logits.copy())
    np.testing.assert_array_equal(result.top_ids, np.argsort(-logits, axis=1, kind="stable")[:, :k])
    expected = np.stack([log_softmax(row) for row in logits])
    np.testing.assert_allclose(result.top_logprobs, np.take_along_axis(expected, result.top_ids, 1), atol=1e-5)


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    row = np.array([-1.0, 2.0, 0.5], np.float32)
    Processing(Sampling(repetition_penalty=1.5), frozenset()).apply(row, [0, 1], 2)
    np.testing.assert_allclose(row, [-1.5, 4 / 3, 0.5], rtol=1e-6)


@given(context=st.lists(st.integers(0, 9), min_size=1, max_size=30), split=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_penalties_follow_their_definitions(context: list[int], split: float) -> None:
    """Repetition over prompt and answer; presence and frequency over the answer only."""
    prompt_len = int(split * len(context))
    row = np.random.default_rng(3).standard_normal(10).astype(np.float32)
    expected = row.astype(np.float64)
    for token in set(context):
        expected[token] = expected[token] / 1.3 if expected[token] > 0 else expected[token] * 1.3
    for token in range(10):
        count = context[prompt_len:].count(token)
        expected[token] -= 0.7 * (count > 0) + 0.2 * count
    sampling = Sampling(repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.2)
    Processing(sampling, frozenset()).apply(row, context, prompt_len)
    np.testing.assert_allclose(row, expected, atol=1e-5)


def test_end_tokens_are_impossible_before_min_tokens() -> None:
    processing = Processing(Sampling(min_tokens=2), frozenset({1}))
    for num_generated, is_possible in ((0, False), (1, False), (2, True)):
        row = np.zeros(3, np.float32)
        processing.apply(row, [0] * (4 + num_generated), 4)
        assert np.isfinite(row[1]) == is_possible


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_with_nan_or_inf_are_told_apart_and_harm_no_other_row(bad: float) -> None:
    logits = np.zeros((3, 64), np.float32)
    logits[1, 5] = bad
    logits[2, 7] = 9.0
    plan = SamplingPlan()
    for row in range(3):
        plan.add_draw(row, GREEDY, (0, 0, 0, 0))
    result = sampler.run(plan, logits)
    assert result.bad_rows == {1}
    assert (result.draw_tokens[0], result.draw_tokens[2]) == (0, 7)


def test_a_row_that_forbids_every_token_is_bad() -> None:
    plan = SamplingPlan()
    plan.add_draw(0, GREEDY, (0, 0, 0, 0))
    assert sampler.run(plan, np.full((1, 8), -np.inf, np.float32)).bad_rows == {0}


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    rng = np.random.default_rng(11)
    logits = (rng.standard_normal((16, 777)) * 4).astype(np.float32)
    warp = Warp(0.9, 40, 0.95, 0.01)
    plan = SamplingPlan()
    for row in range(16):
        plan.add_draw(row, warp, (row, 0, 5, 0))
    together = sampler.run(plan, logits.copy())
    for row in range(16):
        alone = SamplingPlan()
        alone.add_draw(0, warp, (row, 0, 5, 0))
        result = sampler.run(alone, logits[row : row + 1].copy())
        assert result.draw_tokens == [together.draw_tokens[row]]
        assert result.draw_logprobs == [together.draw_logprobs[row]]


def draw(logits: Row, warp: Warp) -> list[int]:
    """One draw for each row."""
    plan = SamplingPlan()
    for row in range(len(logits)):
        plan.add_draw(row, warp, (row, 0, 0, 0))
    return sampler.run(plan, logits.copy()).draw_tokens


def log_softmax(row: Row) -> NDArray[np.float64]:
    wide = row.astype(np.float64)
    result: NDArray[np.float64] = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    return result


def reference_distribution(row: Row, warp: Warp) -> NDArray[np.float64]:
    """Probabilities after temperature, then top-k, then top-p, then min-p, each by its definition."""
    scaled = row.astype(np.float64) / warp.temperature
    probabilities = np.exp(scaled - scaled.max())
    probabilities /= probabilities.sum()
    ranked = sorted(range(len(row)), key=lambda token: (-row[token], token))
    if warp.top_k:
        probabilities[ranked[warp.top_k :]] = 0
        probabilities /= probabilities.sum()
    mass = 0.0
    for rank, token in enumerate(ranked):
        if rank and mass >= warp.top_p - 1e-12:
            probabilities[token] = 0
        mass += probabilities[token]
    probabilities[probabilities < warp.min_p * probabilities.max()] = 0
    normalised: NDArray[np.float64] = probabilities / probabilities.sum()
    return normalised
