"""Counter-based randomness: a draw is a pure function of (key, epoch, position, ordinal).

So batching, preemption and retries change nothing. Every sequence has a key: the prompt's is the request's seed, a
fork's is derived from its parent's key and its number among the forks. The mixing function is the finaliser of
SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA '14). The draws themselves are
made by the engine's sampler.
"""

from __future__ import annotations

MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def derive_seed(seed: int, index: int) -> int:
    """The seed of the index-th fork of a sequence with this seed; index 0 is the sequence itself.

    A request with n choices and seed s gives choice i the tokens that a request of its own with
    ``derive_seed(s, i)`` would get.
    """
    seed &= MASK
    return seed if index == 0 else _mix((seed + _mix(index * _GOLDEN & MASK)) & MASK)
