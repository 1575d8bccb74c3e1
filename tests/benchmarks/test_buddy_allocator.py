"""`BuddyAllocator` and the reservations of the paper's Orca variants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.paper import reservation
from benchmarks.paper.buddy import BuddyAllocator
from benchmarks.paper.traces import Job


@given(num_slots=st.integers(1, 5000), actions=st.lists(st.tuples(st.booleans(), st.integers(1, 700)), max_size=60))
def test_regions_never_overlap_and_come_together_again(num_slots: int, actions: list[tuple[bool, int]]) -> None:
    allocator = BuddyAllocator(num_slots)
    taken: dict[int, int] = {}
    for releases, number in actions:
        if releases and taken:
            address = sorted(taken)[number % len(taken)]
            allocator.release(address)
            del taken[address]
        elif (at := allocator.allocate(number)) is not None:
            size = allocator.region_size(number)
            assert number <= size < 2 * number
            assert all(at + size <= other or other + length <= at for other, length in taken.items())
            taken[at] = size
        allocator.check_integrity()
        assert allocator.num_free == num_slots - sum(taken.values())
    for address in taken:
        allocator.release(address)
    assert allocator.allocate(1 << (num_slots.bit_length() - 1)) is not None, "the largest region is whole again"


def test_memory_of_opt_13b_holds_seven_longest_sequences() -> None:
    """15.7K slots, the paper's Table 1, and 7.0 batched requests of Orca (Max), its Figure 13."""
    allocator = BuddyAllocator(15728)
    assert sum(allocator.allocate(2048) is not None for _ in range(20)) == 7


def test_free_slots_in_pieces_do_not_serve_a_large_request() -> None:
    allocator = BuddyAllocator(64)
    addresses = [allocator.allocate(16) for _ in range(4)]
    for address in addresses[::2]:
        assert address is not None
        allocator.release(address)
    assert allocator.num_free == 32
    assert allocator.allocate(32) is None


@pytest.mark.parametrize(
    ("policy", "slots"), [(reservation.maximum, 2048), (reservation.power_of_two, 132), (reservation.oracle, 125)]
)
def test_reservations(policy: reservation.Reservation, slots: int) -> None:
    """The paper's example: an answer of 25 tokens gets 32 slots from Orca (Pow2)."""
    assert policy(Job(0.0, 100, 25)) == slots


def test_a_reservation_ends_at_the_longest_sequence() -> None:
    assert reservation.power_of_two(Job(0.0, 1000, 1025)) == 2048
