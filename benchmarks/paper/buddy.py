"""`BuddyAllocator`: contiguous regions of slots, whose sizes are powers of two (what the paper gives its Orca)."""

from __future__ import annotations


class BuddyAllocator:
    """Splits a region in halves until a half just fits, and joins free halves again.

    A memory that is no power of two is covered by the largest aligned powers of two, from the front.

    Args:
        num_slots: size of the memory.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free: list[set[int]] = [set() for _ in range(num_slots.bit_length())]
        self._taken: dict[int, int] = {}  # address -> order
        address = 0
        for order in reversed(range(num_slots.bit_length())):
            if num_slots & 1 << order:
                self._free[order].add(address)
                address += 1 << order

    @property
    def num_free(self) -> int:
        """Slots in no region, adjacent or not."""
        return sum(len(addresses) << order for order, addresses in enumerate(self._free))

    @staticmethod
    def region_size(num_slots: int) -> int:
        """Slots of the region that a request for `num_slots` gets."""
        return 1 << (num_slots - 1).bit_length()

    def allocate(self, num_slots: int) -> int | None:
        """Take the smallest power of two that holds `num_slots`; its address, None when no region is left."""
        order = (num_slots - 1).bit_length()
        for larger in range(order, len(self._free)):
            if self._free[larger]:
                address = min(self._free[larger])
                self._free[larger].remove(address)
                self._split(address, larger, order)
                self._taken[address] = order
                return address
        return None

    def release(self, address: int) -> None:
        """Give a region back and join it with its buddy as often as that is free too."""
        order = self._taken.pop(address)
        while address ^ 1 << order in self._free[order]:
            self._free[order].remove(address ^ 1 << order)
            address &= ~(1 << order)
            order += 1
        self._free[order].add(address)

    def check_integrity(self) -> None:
        """Raise AssertionError unless free and taken regions cover the memory exactly once."""
        regions = [(address, order) for order, addresses in enumerate(self._free) for address in addresses]
        end = 0
        for address, order in sorted([*regions, *self._taken.items()]):
            assert address == end, f"region {address} follows {end}"
            assert address % (1 << order) == 0, f"region {address} is not aligned to {1 << order}"
            end = address + (1 << order)
        assert end == self.num_slots, f"regions end at {end} of {self.num_slots}"

    def _split(self, address: int, larger: int, order: int) -> None:
        """Free all of the larger region but the first 2 ** order slots."""
        for half in range(order, larger):
            self._free[half].add(address + (1 << half))
