"""`InstantRunner`: a `Runner` that takes no time; its logits are random, about as sure as a language model's."""

from __future__ import annotations

import numpy as np

from chatserve.models.batch import Batch, Float32Array
from chatserve.models.runner import ModelInfo

VOCAB_SIZE = 64
_NUM_ROWS = 4096
_SCALE = 4.0  # of normal logits: the next token has an entropy of 1.3 nats on average


class InstantRunner:
    """Rows are drawn from a fixed set, in an order that depends on the seed and on nothing else.

    Args:
        max_len: longest sequence, in tokens.
        kv_bytes_per_token: of the model that is simulated.
        seed: of rows and order.
    """

    def __init__(self, max_len: int, kv_bytes_per_token: int, seed: int = 0) -> None:
        self._generator = np.random.default_rng(seed)
        self._rows = _SCALE * self._generator.standard_normal((_NUM_ROWS, VOCAB_SIZE)).astype(np.float32)
        self._info = ModelInfo(
            name="instant",
            vocab_size=VOCAB_SIZE,
            max_model_len=max_len,
            kv_bytes_per_token=kv_bytes_per_token,
            is_batch_invariant=False,
            description="random logits at once",
        )

    @property
    def info(self) -> ModelInfo:
        return self._info

    def allocate(self, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        """There are no pages."""

    def forward(self, batch: Batch) -> Float32Array:
        """Random rows float32[R, VOCAB_SIZE]."""
        rows: Float32Array = self._rows[self._generator.integers(_NUM_ROWS, size=len(batch.wanted))]
        return rows

    def close(self) -> None:
        """There is nothing to release."""
