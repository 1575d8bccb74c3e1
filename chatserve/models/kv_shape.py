"""`KvShape`: the numbers that fix how large a model's KV is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvShape:
    """K and V of one token: `num_layers` x 2 x `num_kv_heads` x `head_dim` numbers."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
