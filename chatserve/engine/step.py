"""`Step`: one iteration on its way through the model."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from threading import Event

from chatserve.engine import sampler
from chatserve.engine.sampler import SamplingPlan, SamplingResult
from chatserve.engine.scheduler import Work
from chatserve.models.batch import Batch
from chatserve.models.runner import Runner

_log = logging.getLogger("chatserve.engine")


@dataclass(slots=True)
class Step:
    """What runs, and after `run` what came out and how long it took.

    Attributes:
        moves: swaps blocks before the batch runs; a forward of its own, so that its time is known.
        has_begun: set as soon as it runs.
    """

    runner: Runner
    batch: Batch
    plan: SamplingPlan
    work: Work
    moves: Batch | None = None
    result: SamplingResult | None = None
    error: Exception | None = None
    swapping_seconds: float = 0.0
    forward_seconds: float = 0.0
    sampling_seconds: float = 0.0
    has_begun: Event = field(default_factory=Event)

    @property
    def num_moved_blocks(self) -> int:
        return len(self.moves.swap_out) + len(self.moves.swap_in) if self.moves is not None else 0

    def run(self) -> None:
        """Forward and sampling; errors are kept for `Engine.end_step`. Safe to call in a worker thread."""
        self.has_begun.set()
        try:
            started = time.perf_counter()
            if self.moves is not None:
                self.runner.forward(self.moves)
            moved = time.perf_counter()
            logits = self.runner.forward(self.batch)
            computed = time.perf_counter()
            self.result = sampler.run(self.plan, logits)
            self.swapping_seconds, self.forward_seconds = moved - started, computed - moved
            self.sampling_seconds = time.perf_counter() - computed
        except Exception as error:  # whatever a model raises must end the step's requests, not the engine
            _log.exception("the forward failed")
            self.error = error
