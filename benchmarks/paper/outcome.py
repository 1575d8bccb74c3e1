"""`Outcome`: what became of a trace: the times of every request, and averages over the run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper.traces import Job

_SHORT_WAIT = 0.5  # seconds; no overloaded server answers sooner


@dataclass(frozen=True, slots=True)
class Served:
    """When a job got its first token and its last, in seconds from the start of the trace."""

    job: Job
    first_token_at: float
    finished_at: float

    @property
    def normalised_latency(self) -> float:
        """End-to-end seconds by tokens of one choice (the paper's measure, after Orca)."""
        return (self.finished_at - self.job.arrival) / self.job.output_len


@dataclass(slots=True)
class Memory:
    """Slots by use, while a request waits; they add up to the memory.

    Attributes:
        tokens: hold KV.
        reserved: allocated; their request will fill them later.
        internal: allocated, and never filled.
        external: free, and yet the next request does not fit; what rounds a region up counts here too.
    """

    tokens: float = 0.0
    reserved: float = 0.0
    internal: float = 0.0
    external: float = 0.0

    def add(self, other: Memory, weight: float) -> None:
        """Add `weight` times the other."""
        self.tokens += weight * other.tokens
        self.reserved += weight * other.reserved
        self.internal += weight * other.internal
        self.external += weight * other.external

    def shares(self) -> dict[str, float]:
        """Each use as a share of all; zeros when nothing was added."""
        uses = {name: getattr(self, name) for name in Memory.__slots__}
        total = sum(uses.values())
        return {name: value / total if total else 0.0 for name, value in uses.items()}


@dataclass(slots=True)
class Outcome:
    """Results of one run.

    Attributes:
        served: every job, by arrival.
        memory: seconds times slots, over the steps in which somebody waited.
        request_seconds, busy_seconds: batched requests integrated over the steps, and those steps' length, from the
            first tenth of the arrivals to the last arrival.
        num_blocks_shared, num_blocks_unshared: blocks saved by sharing, and blocks without any, summed over the steps.
        counters: preemptions and the like.
    """

    served: list[Served] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    request_seconds: float = 0.0
    busy_seconds: float = 0.0
    num_blocks_shared: int = 0
    num_blocks_unshared: int = 0
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def batched(self) -> float:
        """Requests in a step, on average over the time."""
        return self.request_seconds / self.busy_seconds if self.busy_seconds else 0.0

    @property
    def shared(self) -> float:
        """Blocks that sharing saves, as a share of the blocks without it (the paper's Figure 15)."""
        return self.num_blocks_shared / self.num_blocks_unshared if self.num_blocks_unshared else 0.0

    @property
    def throughput(self) -> float:
        """Requests a second between the 20th and the 80th per cent of all completions."""
        ends = np.sort([served.finished_at for served in self.served])
        first, last = len(ends) // 5, len(ends) * 4 // 5
        return float((last - first) / (ends[last] - ends[first]))

    def normalised_latencies(self) -> NDArray[np.float64]:
        return np.array([served.normalised_latency for served in self.served])

    def first_token_seconds(self) -> NDArray[np.float64]:
        return np.array([served.first_token_at - served.job.arrival for served in self.served])

    def latency_after(self, seconds: float) -> float:
        """Mean normalised latency that a trace of this length would show.

        Of an overloaded server the queue grows as long as the trace goes on, and a short trace hides it: 600 requests
        at 2 a second are over after five minutes. So the growth of the waits for the first token, a line fitted to
        them, is continued to the wanted length. Short waits do not count: steps grow longer while a batch fills up, and
        that comes to an end.
        """
        arrivals = np.array([served.job.arrival for served in self.served])
        output_lens = np.array([served.job.output_len for served in self.served])
        waits = np.maximum(self.first_token_seconds() - _SHORT_WAIT, 0.0)
        growth = max(0.0, float(np.polyfit(arrivals, waits, 1)[0]))
        later = arrivals * (seconds / arrivals.max() - 1)
        return float((self.normalised_latencies() + growth * later / output_lens).mean())
