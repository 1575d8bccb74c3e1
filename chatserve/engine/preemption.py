"""`PreemptionCosts`: is swapping a group that gives way cheaper than recomputing it? (PagedAttention, section 7.3)."""

from __future__ import annotations

_ASSUMED_BYTES_PER_SECOND = 8e9  # until a swap was measured: PCIe 4 in practice, a memory copy on a slow machine
_ASSUMED_TOKENS_PER_SECOND = 2000.0  # until a prefill was measured
_FEWEST_TOKENS = 32  # steps with fewer are bound by reading the weights and say nothing about prefill
_WEIGHT_OF_NEWEST = 0.2


class PreemptionCosts:
    """Learns how fast blocks are copied and prompts are computed, and compares the two.

    Args:
        block_bytes: bytes of one KV block over all layers.
        block_size: tokens in it.
    """

    def __init__(self, block_bytes: int, block_size: int) -> None:
        self._block_bytes = block_bytes
        self._block_size = block_size
        self.seconds_per_block = block_bytes / _ASSUMED_BYTES_PER_SECOND
        self.seconds_per_token = 1 / _ASSUMED_TOKENS_PER_SECOND
        self._has_moved = self._has_computed = False

    def learn_move(self, num_blocks: int, seconds: float) -> None:
        """A step moved this many blocks in this time."""
        if num_blocks:
            self.seconds_per_block = _mean(self.seconds_per_block, seconds / num_blocks, self._has_moved)
            self._has_moved = True

    def learn_forward(self, num_tokens: int, seconds: float) -> None:
        """A step computed this many tokens in this time."""
        if num_tokens >= _FEWEST_TOKENS:
            self.seconds_per_token = _mean(self.seconds_per_token, seconds / num_tokens, self._has_computed)
            self._has_computed = True

    def prefers_swap(self, num_blocks: int, num_tokens: int) -> bool:
        """Whether moving `num_blocks` out and in again costs less than computing `num_tokens` tokens again."""
        return 2 * num_blocks * self.seconds_per_block < num_tokens * self.seconds_per_token


def _mean(before: float, newest: float, has_measured: bool) -> float:
    return before + _WEIGHT_OF_NEWEST * (newest - before) if has_measured else newest
