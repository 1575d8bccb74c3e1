"""`AttentionBackend`: pages plus the attention that reads them, as the transformers runner sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from chatserve.models.batch import Batch

if TYPE_CHECKING:
    import torch


class AttentionRule(NamedTuple):
    """How a layer attends.

    Attributes:
        scaling: factor on q . k.
        window: a token sees itself and the `window` - 1 tokens before it; 0: all before it.
        softcap: scores s become ``softcap * tanh(s / softcap)``; 0: they stay.
    """

    scaling: float
    window: int = 0
    softcap: float = 0.0


class AttentionBackend(Protocol):
    """The pages of all layers on one device. Calls come from one thread at a time."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V of one token over all layers, padding included."""

    def allocate(self, num_blocks: int, block_size: int, num_host_blocks: int) -> None:
        """Allocate all pages and the host pool. Raises ModelLoadError when the memory is not there."""

    def begin(self, batch: Batch) -> None:
        """Swap out, swap in and copy blocks as `batch` says, and prepare what all layers of the step share."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: AttentionRule
    ) -> torch.Tensor:
        """Write the new K and V of `layer` into their slots, then attend through the block tables.

        `query` is [T, query heads, head_dim], `key` and `value` [T, KV heads, head_dim], rotated, any strides.
        Returns [T, query heads, head_dim] of the query's dtype.
        """


@runtime_checkable
class GraphedBackend(AttentionBackend, Protocol):
    """A backend that can record steps of decodes and run them again without Python between the kernels."""

    def capture(
        self, forward: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor], max_model_len: int
    ) -> None:
        """Record `forward`, which takes token ids, positions and wanted rows, each int64[B], and answers logits
        [1, B, vocabulary]; after `allocate`. A model that cannot be recorded is run step by step."""

    def run_decodes(self, batch: Batch) -> torch.Tensor | None:
        """Run all of `batch`: logits [R, vocabulary], valid until the next call; None when nothing recorded fits."""
