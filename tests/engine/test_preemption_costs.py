"""What the choice between swapping and recomputing learns from measured steps."""

from __future__ import annotations

import pytest

from chatserve.engine.preemption import PreemptionCosts


@pytest.fixture
def costs() -> PreemptionCosts:
    return PreemptionCosts(block_bytes=800_000, block_size=16)


def test_it_compares_both_ways_over_the_bus_with_one_prefill(costs: PreemptionCosts) -> None:
    costs.learn_move(num_blocks=10, seconds=0.01)  # 1 ms a block, so 2 ms out and in
    costs.learn_forward(num_tokens=100, seconds=0.01)  # 0.1 ms a token
    assert costs.prefers_swap(num_blocks=10, num_tokens=201)
    assert not costs.prefers_swap(num_blocks=10, num_tokens=199)


def test_the_first_measurement_replaces_the_assumption_and_later_ones_are_averaged(costs: PreemptionCosts) -> None:
    costs.learn_move(1, 0.010)
    assert costs.seconds_per_block == 0.010
    costs.learn_move(2, 0.040)
    assert costs.seconds_per_block == pytest.approx(0.012)
    costs.learn_move(0, 5.0)  # nothing was moved: nothing is learnt
    assert costs.seconds_per_block == pytest.approx(0.012)


def test_small_steps_say_nothing_about_prefill(costs: PreemptionCosts) -> None:
    before = costs.seconds_per_token
    costs.learn_forward(num_tokens=1, seconds=0.5)
    assert costs.seconds_per_token == before


def test_before_anything_is_measured_it_assumes_an_ordinary_bus_and_device() -> None:
    assert PreemptionCosts(block_bytes=12_800_000, block_size=16).prefers_swap(10, 160)
    assert not PreemptionCosts(block_bytes=800_000_000, block_size=16).prefers_swap(10, 160)
