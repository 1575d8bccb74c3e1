"""`PagedServer`: the real engine with its scheduler, block pool and decoders, in virtual time."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from benchmarks.paper.cost import CostModel, StepWork
from benchmarks.paper.instant_runner import InstantRunner
from benchmarks.paper.outcome import Memory, Outcome, Served
from benchmarks.paper.traces import Job
from chatserve.config import Preemption
from chatserve.decoding import Registry, Sampling
from chatserve.engine import Delta, Engine, EngineLimits, GenerationRequest
from chatserve.engine.request import Request
from chatserve.errors import ChatserveError
from chatserve.models.batch import Batch
from chatserve.testing import byte_vocabulary

FollowUp: TypeAlias = Callable[[Job, list[int], float], Job | None]

_PREFIX = "examples"
_MANY = 1 << 20  # more tokens or sequences than any step has: neither bounds it, and prompts run whole
_OBSERVE_EVERY = 8  # steps


@dataclass(slots=True)
class _Progress:
    """A job inside the engine."""

    job: Job
    request: Request | None = None
    first_token_at: float | None = None


class PagedServer:
    """Serves traces with a pool of the model's size; after every step the clock moves on by what the step costs.

    Args:
        cost: of steps.
        block_size: tokens in a block of the pool; None: as the cost model has it.
        num_slots: tokens in the pool; None: what the model's server has.
        by_batch: request-level scheduling over paged memory: as many of the earliest arrivals as have room for their
            prompts run until all of them are done.
        prefix_caching: find the KV of earlier prompts again.
        preemption: how preempted requests come back; the host pool is as large as the device's.
        seed: of the model's logits and of the draws.
    """

    def __init__(
        self,
        cost: CostModel,
        *,
        block_size: int | None = None,
        num_slots: int | None = None,
        by_batch: bool = False,
        prefix_caching: bool = False,
        preemption: Preemption = "recompute",
        seed: int = 0,
    ) -> None:
        self.cost = cost
        self.block_size = block_size or cost.block_size or 16
        self.by_batch = by_batch
        model = cost.model
        num_blocks = (model.num_slots if num_slots is None else num_slots) // self.block_size
        limits = EngineLimits(
            num_blocks=num_blocks,
            block_size=self.block_size,
            max_batch_tokens=_MANY,
            max_running_sequences=_MANY,
            prefix_caching=prefix_caching,
            decoder_timeout=60.0,
            num_host_blocks=num_blocks,
            preemption=preemption,
        )
        runner = InstantRunner(model.max_len + 1, model.kv_bytes_per_token, seed)
        self.engine = Engine(runner, byte_vocabulary(), Registry.load(), limits)
        self._arriving: list[tuple[float, int, Job]] = []
        self._waiting: deque[Job] = deque()
        self._inside: dict[Request, _Progress] = {}
        self._held_back: list[_Progress] = []  # done, in a batch that is not
        self._num_jobs = 0
        self._now = 0.0
        self._outcome = Outcome()
        self._window = (0.0, 0.0)
        self._follow_up: FollowUp | None = None
        self._has_shared = False  # blocks that several sequences hold

    def serve(self, jobs: list[Job], follow_up: FollowUp | None = None) -> Outcome:
        """Run a trace, given in the order of arrival, to its end.

        `follow_up` is called with each job that is done, the tokens of its first choice, and the time; the job it
        answers arrives later.
        """
        self._follow_up = follow_up
        self._has_shared = any(job.width > 1 or job.prefix_len or job.prompt for job in jobs)
        self._window = (jobs[len(jobs) // 10].arrival, jobs[-1].arrival)
        self._register_prefix(jobs[0].prefix_len)
        for job in jobs:
            self._expect(job)
        while self._arriving or self._waiting or self.engine.has_work:
            if not self.engine.has_work and not self._waiting:
                self._now = max(self._now, self._arriving[0][0])
            self._take_arrivals()
            self._submit()
            self._step()
        self._outcome.served.sort(key=lambda served: served.job.arrival)
        self._outcome.counters |= {
            name: value for name, value in self.engine.stats().items() if name in ("preemptions", "prefix_hit_tokens")
        }
        return self._outcome

    # requests

    def _register_prefix(self, prefix_len: int) -> None:
        if prefix_len:
            self.engine.register_prefix(_PREFIX, (1,) * prefix_len, _raise_errors)
            while self.engine.step():
                pass

    def _expect(self, job: Job) -> None:
        heapq.heappush(self._arriving, (job.arrival, self._num_jobs, job))
        self._num_jobs += 1

    def _take_arrivals(self) -> None:
        while self._arriving and self._arriving[0][0] <= self._now:
            self._waiting.append(heapq.heappop(self._arriving)[2])

    def _submit(self) -> None:
        """Hand waiting jobs to the engine, which queues them itself; a batch only when the last one is done."""
        if not self.by_batch:
            while self._waiting:
                self._open(self._waiting.popleft())
        elif not self.engine.has_work:
            room = self.engine.pool.num_blocks
            while self._waiting and room >= (needed := self._prompt_blocks(self._waiting[0])):
                self._open(self._waiting.popleft())
                room -= needed

    def _prompt_blocks(self, job: Job) -> int:
        return self.engine.pool.blocks_for(job.prompt_len) + 2 * job.width

    def _open(self, job: Job) -> None:
        progress = _Progress(job)
        progress.request = self.engine.submit(_as_request(job), lambda news: self._listen(progress, news))
        self._inside[progress.request] = progress

    def _listen(self, progress: _Progress, news: Delta | ChatserveError | None) -> None:
        if isinstance(news, ChatserveError):
            raise news
        if progress.first_token_at is None:
            progress.first_token_at = self._now
        if news is None:
            self._held_back.append(progress)

    def _end_jobs(self) -> None:
        """Note who is done; with request-level scheduling nobody is before the whole batch is."""
        if self.by_batch and self.engine.has_work:
            return
        for progress in self._held_back:
            request, first_token_at = progress.request, progress.first_token_at
            assert request is not None
            assert first_token_at is not None
            del self._inside[request]
            self._outcome.served.append(Served(progress.job, first_token_at, self._now))
            if self._follow_up is not None:
                following = self._follow_up(progress.job, request.published_token_ids()[0], self._now)
                if following is not None:
                    self._expect(following)
        self._held_back.clear()

    # steps

    def _step(self) -> None:
        step = self.engine.begin_step()
        if step is None:
            return
        work = work_of(step.batch, self.block_size)
        if step.moves is not None:
            work.num_swapped_blocks += work_of(step.moves, self.block_size).num_swapped_blocks
        duration = self.cost.seconds(work)
        self._observe(step.batch, work, duration)
        self._now += duration
        step.run()
        self.engine.end_step(step)
        self._end_jobs()

    def _observe(self, batch: Batch, work: StepWork, duration: float) -> None:
        """Add one step to the averages."""
        start, end = self._window
        if start <= self._now < end:
            self._outcome.busy_seconds += duration
            self._outcome.request_seconds += duration * len(self.engine.scheduler.running)
        counters = self._outcome.counters
        counters["steps"] = counters.get("steps", 0) + 1
        counters["copies"] = counters.get("copies", 0) + len(batch.copies)
        counters["attended_rows"] = counters.get("attended_rows", 0) + batch.num_chunks
        counters["swapped_blocks"] = counters.get("swapped_blocks", 0) + work.num_swapped_blocks
        counters["computed_tokens"] = counters.get("computed_tokens", 0) + work.num_tokens
        if counters["steps"] % _OBSERVE_EVERY == 0:
            self._observe_memory(batch, duration)

    def _observe_memory(self, batch: Batch, duration: float) -> None:
        if self._has_shared:
            num_unshared, num_saved = blocks_saved(batch, self.block_size)
            self._outcome.num_blocks_unshared += num_unshared
            self._outcome.num_blocks_shared += num_saved
        elif self.engine.scheduler.waiting:
            self._outcome.memory.add(self._memory(), duration)

    def _memory(self) -> Memory:
        """Use of the pool, where nothing is shared."""
        memory = Memory(external=float(self.engine.pool.num_blocks * self.block_size))
        for request in self.engine.scheduler.running:
            job = self._inside[request].job
            for sequence in request.group.live:
                filled, allocated = sequence._table.num_tokens, sequence._table.num_blocks * self.block_size
                future = min(allocated, job.prompt_len + job.output_len) - filled
                use = Memory(filled, future, allocated - filled - future, -allocated)
                memory.add(use, 1.0)
        return memory


def work_of(batch: Batch, block_size: int) -> StepWork:
    """What a batch has to do; a chunk of one token reads KV, a longer one is a prefill."""
    lens = np.diff(batch.query_starts).astype(np.int64)
    contexts = batch.context_lens.astype(np.int64)
    is_decode = lens == 1
    prefill_lens = lens[~is_decode]
    pairs = prefill_lens * contexts[~is_decode] - prefill_lens * (prefill_lens - 1) // 2
    return StepWork(
        num_tokens=batch.num_tokens,
        num_attended=int(contexts[is_decode].sum()),
        num_pairs=int(pairs.sum()),
        num_blocks=int((-(-contexts[is_decode] // block_size)).sum()),
        num_copied=len(batch.copies) * block_size,
        num_swapped_blocks=len(batch.swap_out) + len(batch.swap_in),
    )


def blocks_saved(batch: Batch, block_size: int) -> tuple[int, int]:
    """Blocks that the sequences of a batch would hold without sharing, and how many fewer they hold."""
    counts = -(-batch.context_lens // block_size)
    named = batch.block_tables[np.arange(batch.block_tables.shape[1]) < counts[:, None]]
    return len(named), len(named) - len(np.unique(named))


def _as_request(job: Job) -> GenerationRequest:
    prompt = job.prompt or (0,) * (job.prompt_len - job.prefix_len)
    params: dict[str, Any] = {}
    decoder = job.decoder
    if job.prefix_len:
        decoder, params = "shared-prefix", {"prefix": _PREFIX}
    elif decoder == "beam":
        params = {"width": job.width}
    sampling = Sampling(
        n=job.width if decoder == "parallel" else 1,
        seed=hash((job.arrival, job.prompt_len)) & 0xFFFF_FFFF,
        max_tokens=job.output_len,
        ignore_eos=True,
    )
    return GenerationRequest(prompt_token_ids=prompt, sampling=sampling, decoder=decoder, decoder_params=params)


def _raise_errors(news: Delta | ChatserveError | None) -> None:
    if isinstance(news, ChatserveError):
        raise news
