"""Kernels of the sampler in numba: log-sum-exp, draws and top-k over rows of logits.

Each row is worked on by one thread in a fixed order, so its result does not depend on the other rows. The parallel
kernels run in the engine's worker thread only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir
from numba import get_num_threads, njit, prange, set_num_threads, types
from numba.extending import intrinsic
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]
Mask = NDArray[np.bool_]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LOG2E = np.float32(1.4426950408889634)
_SMALL_SIZE = 1 << 18  # logits; below, waking a second thread costs more than it saves, and far more on a busy machine
_SMALL_K = 128  # up to here the best k are kept by insertion; a sort of the whole row is cheaper above


@contextmanager
def threads_for(size: int) -> Iterator[None]:
    """Inside, the parallel kernels that this thread calls use one thread for little work, all of them otherwise."""
    before = get_num_threads()
    set_num_threads(1 if size < _SMALL_SIZE else before)
    try:
        yield
    finally:
        set_num_threads(before)


@intrinsic
def _float_from_bits(typing_context: Any, bits: Any) -> Any:
    """The float32 whose bit pattern is this int32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), codegen


@njit(inline="always")
def _exp(x: np.float32) -> np.float32:
    """e**x for x <= 0, relative error below 2e-7; 0 below -87. LLVM vectorises it, unlike a call of libm's expf.

    2**n * 2**f with f in [-0.5, 0.5], the latter by its Taylor polynomial in f * ln 2.
    """
    t = max(x, np.float32(-87.0)) * _LOG2E
    n = np.floor(t + np.float32(0.5))
    f = (t - n) * np.float32(0.6931471805599453)
    p = np.float32(1.0 / 5040.0)
    p = p * f + np.float32(1.0 / 720.0)
    p = p * f + np.float32(1.0 / 120.0)
    p = p * f + np.float32(1.0 / 24.0)
    p = p * f + np.float32(1.0 / 6.0)
    p = p * f + np.float32(0.5)
    p = p * f + np.float32(1.0)
    p = p * f + np.float32(1.0)
    scale: Any = _float_from_bits((np.int32(n) + np.int32(127)) << np.int32(23))  # type: ignore[call-arg]
    return p * scale if x > np.float32(-87.0) else np.float32(0.0)


@njit(nogil=True, cache=True, parallel=True, fastmath={"reassoc", "contract", "nsz"})
def row_statistics(logits: Float32, maxima: Float32, log_sums: Float64) -> None:
    """Per row of float32[R, V]: the maximum, and log(sum(exp(x - maximum))).

    A row with NaN or +inf, or nothing above -inf, gets the log-sum NaN.
    """
    for row in prange(logits.shape[0]):
        x = logits[row]
        num_nan = 0
        maximum = np.float32(-np.inf)
        for i in range(len(x)):
            num_nan += x[i] != x[i]
            maximum = max(maximum, x[i])
        maxima[row] = maximum
        if num_nan > 0 or not np.isfinite(maximum):
            log_sums[row] = np.nan
            continue
        total = np.float64(0.0)
        for i in range(len(x)):
            total += np.float64(_exp(x[i] - maximum))
        log_sums[row] = np.log(total)


@njit(nogil=True, cache=True)
def _best(x: Float32, k: int, ids: Int64) -> None:
    """The k largest of x, largest first, ties by lower index, into ids[:k]."""
    if k > _SMALL_K:
        ids[:k] = np.argsort(-x, kind="mergesort")[:k]
        return
    count = 0
    for i in range(len(x)):
        value = x[i]
        if count == k:
            if value <= x[ids[k - 1]]:
                continue
            place = k - 1
        else:
            place = count
            count += 1
        while place > 0 and x[ids[place - 1]] < value:
            ids[place] = ids[place - 1]
            place -= 1
        ids[place] = i


@njit(nogil=True, cache=True, parallel=True)
def best_tokens(logits: Float32, rows: Int64, k: int, ids: Int64) -> None:
    """The k best tokens of each of `rows`, best first, ties by lower id, into ids int64[len(rows), k]."""
    for i in prange(len(rows)):
        _best(logits[rows[i]], k, ids[i])


@njit(nogil=True, cache=True)
def _argmax(x: Float32, maximum: np.float32) -> Any:
    for i in range(len(x)):
        if x[i] == maximum:
            return i
    return 0


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def _weigh(x: Float32, maximum: np.float32, temperature: float, weights: Float32) -> float:
    """weights[i] = exp((x[i] - maximum) / temperature); returns their sum."""
    inverse = 1.0 / temperature
    total = np.float64(0.0)
    for i in range(len(x)):
        scaled = np.float32(max(np.float64(x[i] - maximum) * inverse, -1e4))
        weight = _exp(scaled)
        weights[i] = weight
        total += np.float64(weight)
    return total


@njit(nogil=True, cache=True)
def _pick(weights: Float32, target: float) -> int:
    """The first index at which the running sum passes `target`; else the last one with weight."""
    running = np.float64(0.0)
    last = 0
    for i in range(len(weights)):
        if weights[i] > 0:
            running += np.float64(weights[i])
            last = i
            if running > target:
                return i
    return last


@njit(nogil=True, cache=True)
def _kept(weights: Float32, total: float, top_k: int, top_p: float, min_p: float) -> Int64:
    """Ids that survive top-k, then top-p of what is left, then min-p; likeliest first, ties by lower id.

    Only candidates that can survive are sorted: a token less likely than (1 - top_p) / V lies outside the nucleus,
    since all such tokens together hold less than 1 - top_p.
    """
    size = len(weights)
    if 0 < top_k < size:
        ids = np.empty(top_k, np.int64)
        _best(weights, top_k, ids)
    else:
        floor = max(min_p, (1.0 - top_p) * total / size)
        candidates = np.flatnonzero(weights >= floor)
        ids = candidates[np.argsort(-weights[candidates], kind="mergesort")]
    mass = total if not 0 < top_k < size else np.float64(weights[ids].astype(np.float64).sum())
    count = 0
    running = np.float64(0.0)
    while count < len(ids):
        weight = weights[ids[count]]
        if count > 0 and (running >= top_p * mass or weight < min_p or weight == 0):
            break
        running += np.float64(weight)
        count += 1
    return ids[:count]


@njit(nogil=True, cache=True)
def draw_one(
    x: Float32, maximum: np.float32, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float
) -> Any:
    """One token from a row of processed logits, by inversion of the cumulative distribution at `uniform`.

    The cumulative sum runs in order of token id, or, where a filter is set, from the likeliest token down.
    """
    if temperature <= 0.0 or top_k == 1:
        return _argmax(x, maximum)
    weights = np.empty(len(x), np.float32)
    total = _weigh(x, maximum, temperature, weights)
    if top_k <= 0 and top_p >= 1.0 and min_p <= 0.0:
        return _pick(weights, uniform * total)
    ids = _kept(weights, total, top_k, top_p, min_p)
    kept = weights[ids]
    return ids[_pick(kept, uniform * np.float64(kept.astype(np.float64).sum()))]


@njit(nogil=True, cache=True)
def uniforms(counters: UInt64) -> Float64:
    """Uniform numbers float64[n] in [0, 1) for counters uint64[n, 4]: key, epoch, position, ordinal (see
    `chatserve.decoding.randomness`)."""
    numbers = np.empty(len(counters), np.float64)
    for i in range(len(counters)):
        state = np.uint64(0)
        for column in range(4):
            state = _mix(state * _GOLDEN + counters[i, column] + _GOLDEN)
        numbers[i] = np.float64(state >> np.uint64(11)) * 2.0**-53
    return numbers


@njit(nogil=True, cache=True)
def _mix(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@njit(nogil=True, cache=True, parallel=True)
def draw_tokens(
    logits: Float32, rows: Int64, maxima: Float32, warps: Float64, uniforms: Float64, tokens: Int64
) -> None:
    """One draw for each entry of `rows` (a row may be named several times).

    Args:
        logits: float32[R, V], processed.
        rows: int64[D].
        maxima: float32[R].
        warps: float64[D, 4]: temperature, top_k, top_p, min_p.
        uniforms: float64[D] in [0, 1).
        tokens: int64[D], written.
    """
    for i in prange(len(rows)):
        row = rows[i]
        tokens[i] = draw_one(
            logits[row], maxima[row], warps[i, 0], int(warps[i, 1]), warps[i, 2], warps[i, 3], uniforms[i]
        )


@njit(nogil=True, cache=True)
def forbid(x: Float32, allowed: Mask) -> None:
    """Make all tokens impossible that are not in bool[V] `allowed`; in place."""
    for i in range(len(x)):
        x[i] = x[i] if allowed[i] else np.float32(-np.inf)  # a choice, no branch: it becomes vector code


@njit(nogil=True, cache=True)
def penalise(x: Float32, context: Int64, prompt_len: int, repetition: float, presence: float, frequency: float) -> None:
    """Apply the three penalties to one row in place.

    Repetition (CTRL, section 4.1) counts prompt and answer, presence and frequency the answer only.
    """
    counts = np.zeros(len(x), np.int32)
    for i in range(len(context)):
        token = context[i]
        if counts[token] == 0 and repetition != 1.0:
            x[token] = x[token] / repetition if x[token] > 0 else x[token] * repetition
        counts[token] = 1
    counts[:] = 0
    for i in range(prompt_len, len(context)):
        counts[context[i]] += 1
    for i in range(prompt_len, len(context)):
        token = context[i]
        if counts[token] > 0:
            x[token] -= presence + frequency * counts[token]
            counts[token] = 0
