"""`Gate`: a test decides how far an answer gets, not the speed of the machine."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

from chatserve.models.batch import Batch, Float32Array
from tests.server.harness import Served


class Gate:
    """Lets the model of a server take as many steps as it is told; closed at first.

    A step computes one token of each running sequence, or a part of a prompt.

    Attributes:
        num_steps: how many it has taken.
    """

    def __init__(self, served: Served) -> None:
        self._condition = threading.Condition()
        self._num_allowed = 0.0
        self.num_steps = 0
        runner: Any = served.runner  # of a class that knows nothing of this
        runner.forward = self._guarded(runner.forward)

    def allow(self, num_steps: float) -> None:
        """Let the model take this many steps more."""
        with self._condition:
            self._num_allowed += num_steps
            self._condition.notify_all()

    def allow_up_to(self, num_steps: int) -> None:
        """Let the model take this many steps in all."""
        self.allow(max(0.0, num_steps - self.num_steps - self._num_allowed))

    def open(self) -> None:
        """Let the model run freely."""
        self.allow(math.inf)

    def _guarded(self, forward: Callable[[Batch], Float32Array]) -> Callable[[Batch], Float32Array]:
        def step(batch: Batch) -> Float32Array:
            with self._condition:
                self._condition.wait_for(lambda: self._num_allowed >= 1)
                self._num_allowed -= 1
                self.num_steps += 1
            return forward(batch)

        return step
