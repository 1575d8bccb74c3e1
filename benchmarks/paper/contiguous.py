"""`ContiguousServer`: a server whose KV lies contiguously, in virtual time: Orca and FasterTransformer.

Nothing happens in it between an arrival, an admission and an end but steps that grow evenly, so such stretches are
computed at once. A test compares it, step by step, with the real engine on a pool that never runs out.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from benchmarks.paper.buddy import BuddyAllocator
from benchmarks.paper.cost import CostModel, StepWork
from benchmarks.paper.outcome import Memory, Outcome, Served
from benchmarks.paper.reservation import Reservation
from benchmarks.paper.traces import Job


@dataclass(slots=True)
class _Running:
    """An admitted job; `num_done` of its steps have run."""

    job: Job
    addresses: list[int]
    reserved: int
    num_done: int = 0
    first_token_at: float = 0.0

    @property
    def num_left(self) -> int:
        return self.job.output_len - self.num_done

    @property
    def context(self) -> int:
        """Tokens that the next decode of each sequence sees."""
        return self.job.prompt_len + self.num_done


class ContiguousServer:
    """First come, first served; a request is admitted when all of its reservations fit, and never preempted.

    Args:
        cost: of steps, with contiguous KV.
        reservation: slots a sequence gets.
        by_batch: request-level scheduling (FasterTransformer): the earliest arrivals run to the end of the longest
            together, padded to it, before others are admitted. Else iteration-level scheduling (Orca).
        moved: share of a beam search's hypotheses that in a step continue another hypothesis than the one whose place
            they take; the KV of each is copied.
    """

    def __init__(
        self, cost: CostModel, reservation: Reservation, *, by_batch: bool = False, moved: float = 0.0
    ) -> None:
        self.cost = cost
        self.reservation = reservation
        self.by_batch = by_batch
        self.moved = moved
        self.allocator = BuddyAllocator(cost.model.num_slots)
        self._arriving: deque[Job] = deque()
        self._waiting: deque[Job] = deque()
        self._running: list[_Running] = []
        self._now = 0.0
        self._outcome = Outcome()
        self._window = (0.0, math.inf)

    def serve(self, jobs: list[Job]) -> Outcome:
        """Run a trace, given in the order of arrival, to its end."""
        self._arriving.extend(jobs)
        self._window = (jobs[len(jobs) // 10].arrival, jobs[-1].arrival)
        while self._arriving or self._waiting or self._running:
            self._now = max(self._now, self._arriving[0].arrival) if self._is_idle() else self._now
            self._take_arrivals()
            self._admit()
            self._run(self._num_even_steps())
        self._outcome.served.sort(key=lambda served: served.job.arrival)
        return self._outcome

    def _is_idle(self) -> bool:
        return not self._running and not self._waiting

    def _take_arrivals(self) -> None:
        while self._arriving and self._arriving[0].arrival <= self._now:
            self._waiting.append(self._arriving.popleft())

    # admission

    def _admit(self) -> None:
        if self.by_batch and self._running:
            return
        while self._waiting:
            addresses = self._reserve(self._waiting[0])
            if addresses is None:
                return
            job = self._waiting.popleft()
            self._running.append(_Running(job, addresses, self.reservation(job)))

    def _reserve(self, job: Job) -> list[int] | None:
        """Regions for all sequences of the job; none when they do not all fit."""
        addresses: list[int] = []
        for _ in range(job.width):
            address = self.allocator.allocate(self.reservation(job))
            if address is None:
                for taken in addresses:
                    self.allocator.release(taken)
                if not self._running:
                    raise ValueError(f"{job} does not fit into an empty memory")
                return None
            addresses.append(address)
        return addresses

    # steps

    def _num_even_steps(self) -> int:
        """Steps until the next that may differ: an end, or the first after an arrival that may be admitted."""
        if any(running.num_done == 0 for running in self._running):
            return 1
        count = min(running.num_left for running in self._running if running.num_left > 0)
        if self._arriving and not self._waiting and not self.by_batch:
            first, second = self._seconds(0), self._seconds(1)
            left = self._arriving[0].arrival - self._now
            count = min(count, _num_steps_until(left, first, second - first))
        return count

    def _run(self, count: int) -> None:
        """Run `count` steps that differ only in the length of the contexts."""
        first, last = self._seconds(0), self._seconds(count - 1)
        duration = count * (first + last) / 2
        self._observe(count, duration)
        self._now += duration
        for running in self._running:
            if running.num_done == 0:
                running.first_token_at = self._now
            running.num_done += count
        if self.by_batch:
            self._end_batch()
        else:
            self._end_jobs()

    def _seconds(self, ahead: int) -> float:
        """Length of the step after `ahead` more."""
        work = StepWork()
        if self.by_batch:
            self._add_padded(work, ahead)
        else:
            for running in self._running:
                self._add(work, running.job, running.num_done + ahead, running.job.prompt_len)
        return self.cost.seconds(work)

    def _add(self, work: StepWork, job: Job, num_done: int, prompt_len: int) -> None:
        """Add the step of one job of which `num_done` have run."""
        if num_done == 0:
            work.num_tokens += prompt_len
            work.num_pairs += prompt_len * (prompt_len + 1) // 2
            return
        context = prompt_len + num_done
        work.num_tokens += job.width
        work.num_attended += job.width * context
        if job.decoder == "beam":
            work.num_copied += round(self.moved * job.width * context)

    def _add_padded(self, work: StepWork, ahead: int) -> None:
        """A batch is as long as its longest prompt, and jobs that have ended run on."""
        prompt_len = max(running.job.prompt_len for running in self._running)
        for running in self._running:
            self._add(work, running.job, running.num_done + ahead, prompt_len)

    # ends

    def _end_jobs(self) -> None:
        still = []
        for running in self._running:
            if running.num_left > 0:
                still.append(running)
            else:
                self._end(running)
        self._running = still

    def _end_batch(self) -> None:
        """Request-level scheduling answers when the whole batch is done."""
        if all(running.num_left <= 0 for running in self._running):
            for running in self._running:
                self._end(running)
            self._running = []

    def _end(self, running: _Running) -> None:
        for address in running.addresses:
            self.allocator.release(address)
        self._outcome.served.append(Served(running.job, running.first_token_at, self._now))

    # observation

    def _observe(self, count: int, duration: float) -> None:
        start, end = self._window
        inside = min(self._now + duration, end) - max(self._now, start)
        if inside > 0:
            self._outcome.busy_seconds += inside
            self._outcome.request_seconds += inside * len(self._running)
        if self._waiting:
            self._outcome.memory.add(self._memory((count - 1) / 2), duration)

    def _memory(self, ahead: float) -> Memory:
        """Use of the memory after `ahead` more steps (the middle of a stretch)."""
        memory = Memory()
        for running in self._running:
            final = running.job.prompt_len + running.job.output_len
            filled = min(running.context + ahead, final)
            memory.tokens += running.job.width * filled
            memory.reserved += running.job.width * (final - filled)
            memory.internal += running.job.width * (running.reserved - final)
        memory.external = self.allocator.num_slots - memory.tokens - memory.reserved - memory.internal
        return memory


def _num_steps_until(left: float, first: float, growth: float) -> int:
    """Fewest steps, at least 1, that take `left` seconds when step k takes ``first + k * growth``."""
    if growth <= 0:
        return max(1, math.ceil(left / first))
    half = first - growth / 2
    return max(1, math.ceil((math.sqrt(half * half + 2 * growth * left) - half) / growth))
