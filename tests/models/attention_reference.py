"""Attention over pages in float64 NumPy, one query at a time: the plain meaning of the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chatserve.models.batch import Batch
from tests.models.paging import Paged, Pager


@dataclass
class Problem:
    """One layer's attention: whole sequences of K and V, of which the last `count` tokens are new in the step."""

    batch: Batch
    query: NDArray[np.float32]
    key: NDArray[np.float32]
    value: NDArray[np.float32]
    contexts: list[tuple[NDArray[np.float32], NDArray[np.float32]]]
    counts: list[int]


def make_problem(
    lengths: list[tuple[int, int]], heads: tuple[int, int], head_dim: int, block_size: int, seed: int
) -> tuple[Problem, Batch]:
    """A problem of (context, new tokens) sequences, and the batch that puts the older tokens into the pages first."""
    rng = np.random.default_rng(seed)
    num_query_heads, num_kv_heads = heads
    pager = Pager(sum(-(-context // block_size) for context, _ in lengths) + 3, block_size, rng)
    sequences = [Paged([0] * context) for context, _ in lengths]
    counts = [count for _, count in lengths]
    older = [(sequence, context - count) for sequence, (context, count) in zip(sequences, lengths, strict=True)]
    history = pager.batch([(sequence, count) for sequence, count in older if count] or [(sequences[0], 0)])
    batch = pager.batch(list(zip(sequences, counts, strict=True)))

    def random(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape, np.float32)

    contexts = [(random(n, num_kv_heads, head_dim), random(n, num_kv_heads, head_dim)) for n, _ in lengths]
    new = [[side[-count:] for side in pair] for pair, count in zip(contexts, counts, strict=True)]
    key, value = (np.concatenate(side) for side in zip(*new, strict=True))
    query = random(batch.num_tokens, num_query_heads, head_dim)
    return Problem(batch, query, key, value, contexts, counts), history


def history_of(problem: Problem) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """K and V of the tokens that are older than the step, sequence after sequence."""
    older = [
        [side[: len(side) - count] for side in pair]
        for pair, count in zip(problem.contexts, problem.counts, strict=True)
    ]
    key, value = (np.concatenate(side) for side in zip(*older, strict=True))
    return key, value


def attend_naively(problem: Problem, scaling: float, window: int, softcap: float) -> NDArray[np.float64]:
    """float64[T, query heads, head_dim]."""
    rows: list[Any] = []
    for (key, value), count in zip(problem.contexts, problem.counts, strict=True):
        for position in range(len(key) - count, len(key)):
            first = max(0, position - window + 1) if window else 0
            visible = slice(first, position + 1)
            rows.append(_attend_row(problem.query[len(rows)], key[visible], value[visible], scaling, softcap))
    return np.array(rows)


def _attend_row(query: Any, key: Any, value: Any, scaling: float, softcap: float) -> NDArray[np.float64]:
    group_size = query.shape[0] // key.shape[1]
    keys, values = (np.repeat(side.astype(np.float64), group_size, axis=1) for side in (key, value))
    scores = np.einsum("hd,thd->ht", query.astype(np.float64), keys) * scaling
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    mixed: NDArray[np.float64] = np.einsum("ht,thd->hd", weights, values)
    return mixed
