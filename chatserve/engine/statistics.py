"""`Statistics`: what an engine has done so far, and the gauges of the moment."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chatserve.engine.engine import Engine
    from chatserve.engine.step import Step

# Parts of a step: choosing work and building the batch; moving swapped blocks; model; sampler; resuming decoders and
# publishing.
PARTS = ("scheduling", "swapping", "forward", "sampling", "decoding")


class Statistics:
    """Counters of one engine; only ever growing.

    Attributes:
        num_steps: steps begun.
        num_finished: requests whose decoders came to their end.
        num_exhausted: requests that outgrew the pool on their own.
        num_published_tokens: published by requests that have ended.
        num_recomputed_tokens: computed again after their KV was given up.
        seconds: time spent in each of `PARTS`.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_finished = 0
        self.num_exhausted = 0
        self.num_published_tokens = 0
        self.num_recomputed_tokens = 0
        self.seconds = dict.fromkeys(PARTS, 0.0)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Count the time of the block for `part`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - started

    def count_step(self, step: Step) -> None:
        """Take note of a step that has run."""
        self.num_steps += 1
        self.seconds["swapping"] += step.swapping_seconds
        self.seconds["forward"] += step.forward_seconds
        self.seconds["sampling"] += step.sampling_seconds

    def snapshot(self, engine: Engine) -> dict[str, float]:
        """All counters and gauges by name."""
        pool, scheduler = engine.pool, engine.scheduler
        return {
            "steps": self.num_steps,
            "requests_running": len(scheduler.running),
            "requests_waiting": len(scheduler.waiting),
            "requests_preempted": scheduler.waiting.num_preempted,
            "requests_finished": self.num_finished,
            "requests_exhausted": self.num_exhausted,
            "tokens_published": self.num_published_tokens
            + sum(request.usage.completion_tokens for request in engine.requests),
            "tokens_recomputed": self.num_recomputed_tokens,
            "sequences": sum(len(request.group.live) for request in engine.requests),
            "blocks_total": pool.num_blocks,
            "blocks_used": pool.num_used,
            "blocks_cached": pool.num_cached,
            "blocks_pinned": engine.prefixes.num_blocks,
            "blocks_swapped": scheduler.swapping.space.num_used,
            "slots_unfilled": _num_unfilled_slots(engine),
            "copies_on_write": pool.num_copies,
            "prefix_hit_tokens": engine.prefix_cache.num_hit_tokens,
            "preemptions": scheduler.num_preemptions,
            "preemptions_by_swap": scheduler.swapping.num_swaps,
            **{f"seconds_{part}": seconds for part, seconds in self.seconds.items()},
        }


def _num_unfilled_slots(engine: Engine) -> int:
    """Slots of used blocks that hold nothing: all that paging wastes (PagedAttention, Figure 2)."""
    size = engine.pool.block_size
    last_filled = {
        int(sequence._table.blocks[-1]): (sequence._table.num_tokens - 1) % size + 1
        for request in engine.requests
        for sequence in request.group.live
        if sequence._table.num_blocks
    }
    return sum(size - filled for filled in last_filled.values())
