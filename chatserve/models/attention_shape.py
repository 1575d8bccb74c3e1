"""`AttentionShape`: the numbers that fix what an attention backend has to hold and to compute."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Each layer has `num_query_heads` queries, `num_kv_heads` keys and values, of `head_dim` numbers a token.

    `has_softcap`: some layer caps its scores.
    """

    num_layers: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    has_softcap: bool = False
