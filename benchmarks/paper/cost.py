"""`CostModel`: how long a step takes on a server, from the bytes it reads and the products it computes."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.paper.served_model import ServedModel

PAGED_FACTOR = 1.23  # paged attention against contiguous (the paper measures 1.20 to 1.26, Figure 18a)
_BLOCK_TOKENS = 0.5  # each block costs as much as reading so many tokens: 1.26 in all at 16 tokens a block
_PCIE_BANDWIDTH = 25e9  # bytes a second over 16 lanes of PCIe 4; 32e9 on paper
_TRANSFER_SECONDS = 4e-6  # to start one copy between host and device


@dataclass(slots=True)
class StepWork:
    """What one step has to do.

    Attributes:
        num_tokens: tokens that run through the layers.
        num_attended: tokens whose KV is read by decodes, counted once for each sequence that reads it.
        num_pairs: (query, key) pairs of prefills, which compute rather than read.
        num_blocks: blocks that decodes read; they cost nothing where KV is contiguous.
        num_copied: tokens whose KV is copied inside the device.
        num_swapped_blocks: blocks moved between host and device, either way.
    """

    num_tokens: int = 0
    num_attended: int = 0
    num_pairs: int = 0
    num_blocks: int = 0
    num_copied: int = 0
    num_swapped_blocks: int = 0


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of a step; its parts add up, nothing overlaps.

    Args:
        model: the model and its server.
        block_size: tokens in a block; None: contiguous KV.
    """

    model: ServedModel
    block_size: int | None = None

    def seconds(self, work: StepWork) -> float:
        """Weights are read once a step, KV once for each decode that attends to it."""
        model = self.model
        read = model.weight_bytes + self.read_bytes(work)
        copied = 2 * work.num_copied * model.kv_bytes_per_token
        return (
            (read + copied) / model.bandwidth
            + self.flop_count(work) / model.flops
            + self.swap_seconds(work.num_swapped_blocks)
        )

    def read_bytes(self, work: StepWork) -> float:
        """KV bytes that attention reads; paged attention is slower, told here as more bytes."""
        num_tokens: float = work.num_attended
        if self.block_size is not None:
            num_tokens = PAGED_FACTOR * work.num_attended + _BLOCK_TOKENS * work.num_blocks
        return num_tokens * self.model.kv_bytes_per_token

    def flop_count(self, work: StepWork) -> float:
        """Two for each parameter and token, four for each pair, layer and element of a hidden vector."""
        model = self.model
        return 2 * model.num_parameters * work.num_tokens + 4 * model.num_layers * model.hidden_size * work.num_pairs

    def swap_seconds(self, num_blocks: int) -> float:
        """Moving blocks one way; each layer's keys and values of a block are a transfer of their own."""
        if not num_blocks:
            return 0.0
        assert self.block_size is not None
        num_bytes = num_blocks * self.block_size * self.model.kv_bytes_per_token
        return num_bytes / _PCIE_BANDWIDTH + num_blocks * 2 * self.model.num_layers * _TRANSFER_SECONDS

    def recompute_seconds(self, num_tokens: int) -> float:
        """A prefill of so many tokens, beyond what the step costs anyway."""
        work = StepWork(num_tokens=num_tokens, num_pairs=num_tokens * (num_tokens + 1) // 2)
        return self.flop_count(work) / self.model.flops
