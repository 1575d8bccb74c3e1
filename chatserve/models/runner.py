"""`Runner`: what the engine asks of a model. It owns the pages (KV tensors); `chatserve.kv` owns only numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from chatserve.models.batch import Batch, Float32Array


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about a loaded model.

    Attributes:
        name: the id clients use.
        vocab_size: number of logits in a row.
        max_model_len: longest sequence (prompt + generated), in tokens.
        kv_bytes_per_token: bytes of K and V of one token over all layers.
        is_batch_invariant: whether a row's logits are bit-identical whatever else is in the step.
        description: one line for the start banner, such as ``llama, 30 layers, float32, cpu``.
        device: where the pages lie, as torch names it.
    """

    name: str
    vocab_size: int
    max_model_len: int
    kv_bytes_per_token: int
    is_batch_invariant: bool
    description: str
    device: str = "cpu"


class Runner(Protocol):
    """A model behind paged KV. Calls come from one thread at a time."""

    @property
    def info(self) -> ModelInfo: ...

    def allocate(self, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        """Allocate the pages, once, contiguous: `num_blocks` blocks of `block_size` tokens for all layers, and the
        host pool for swapping. Raises ModelLoadError when the memory is not there."""

    def forward(self, batch: Batch) -> Float32Array:
        """Run one step and return logits float32[R, vocab_size], row i for token ``batch.wanted[i]``.

        Order: swap out, swap in, copies, then writes of new K and V, then attention. The caller may change the
        returned array; it is valid until the next call. A batch without tokens moves blocks only; the blocks have been
        moved when this returns.
        """

    def close(self) -> None:
        """Release memory and threads."""
