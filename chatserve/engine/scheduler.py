"""`Scheduler`: which rows run in the next step, who is admitted, and who gives way when blocks run out.

Iteration by iteration (Orca), in the order of a policy. The request is the gang: its sequences are admitted and
preempted together (PagedAttention, section 4.5). A step mixes decodes and prefill chunks under one token budget.
"""

from __future__ import annotations

import time
from bisect import insort
from dataclasses import dataclass

from chatserve.decoding.sequence import Sequence
from chatserve.engine.plain_draws import take_slots
from chatserve.engine.policy import Policy
from chatserve.engine.prefix_cache import PrefixCache
from chatserve.engine.request import Request
from chatserve.engine.rows import RowTask
from chatserve.engine.swapping import Swapping
from chatserve.engine.waiting_line import WaitingLine
from chatserve.kv import BlockPool


@dataclass(slots=True)
class Chunk:
    """Consecutive tokens of one task that run in this step.

    Attributes:
        start, stop: their positions.
        first_new: position of the first whose KV is to be written; those before are in the pages already.
        first_row: position of the first whose logits are wanted; `stop` or more when none are.
    """

    request: Request
    task: RowTask
    start: int
    stop: int
    first_new: int
    first_row: int


@dataclass(slots=True)
class Work:
    """What runs in one step.

    Attributes:
        draws: requests whose await goes the short way: one row for each sequence that it names.
        chunks: everything else.
    """

    draws: list[Request]
    chunks: list[Chunk]

    def __bool__(self) -> bool:
        return bool(self.draws or self.chunks)

    def requests(self) -> dict[Request, None]:
        """Those that take part, each once."""
        return dict.fromkeys([*self.draws, *(chunk.request for chunk in self.chunks)])


@dataclass(slots=True)
class Limits:
    """Bounds of one step (see `Config`)."""

    max_batch_tokens: int
    max_prefill_tokens: int
    max_running_sequences: int


class Scheduler:
    """Queues and the choice of work. Only token lists, tables and numbers; no arrays, no model.

    Attributes:
        waiting: requests never started or preempted.
        running: requests that may hold blocks, in the policy's order.
        swapping: preempted groups in host memory.
        exhausted: requests found to need more than the whole pool; the engine ends them with "length".
        num_preemptions: so far.
    """

    def __init__(
        self, pool: BlockPool, limits: Limits, prefix_cache: PrefixCache, policy: Policy, swapping: Swapping
    ) -> None:
        self.pool = pool
        self.prefix_cache = prefix_cache
        self.limits = limits
        self.policy = policy
        self.swapping = swapping
        self.waiting = WaitingLine(policy)
        self.running: list[Request] = []
        self.exhausted: list[Request] = []
        self.num_preemptions = 0

    def add(self, request: Request) -> None:
        self.waiting.add(request)

    def remove(self, request: Request) -> None:
        """Forget a request that has ended."""
        if request.is_running:
            self.running.remove(request)
            request.is_running = False
        else:
            self.waiting.remove(request)
            self.swapping.discard(request)

    def schedule(self) -> Work:
        """Choose the next step's work and give it blocks; may preempt, release idle KV, note exhausted requests."""
        if not self.policy.is_static:
            self.running.sort(key=self.policy.rank)
            self.waiting.reorder()
        self._admit()
        if self._take_usual_step():
            return Work(self.running[:], [])
        draws: list[Request] = []
        chunks: list[Chunk] = []
        prefills: list[tuple[Request, RowTask]] = []
        budget = self.limits.max_batch_tokens
        for request in list(self.running):
            draw = request.draw
            if (
                draw is not None
                and len(draw.sequences) <= budget
                and request.is_running
                and take_slots(draw.sequences, self.pool)
            ):
                draws.append(request)
                budget -= len(draw.sequences)
                continue
            for task in self._ready_tasks(request) if request.is_running else ():
                if len(task.leader) - task.start > 1:  # more than a draft is to be run
                    prefills.append((request, task))  # after the decodes, so that a long prompt never stalls them
                else:
                    budget -= self._schedule_task(request, task, budget, chunks)
        prefills = self._without_twins(prefills)
        shares = _shares([task.end - task.start for _, task in prefills], min(budget, self.limits.max_prefill_tokens))
        for (request, task), share in zip(prefills, shares, strict=True):
            self._schedule_task(request, task, share, chunks)
        return Work(
            [request for request in draws if request.is_running],
            [chunk for chunk in chunks if chunk.request.is_running],
        )

    def _take_usual_step(self) -> bool:
        """Take the slots of a step that is plain draws of all running requests; False when it is not, or may not fit.

        Most steps are, and all at once they cost less than half of what they cost one by one.
        """
        sequences: list[Sequence] = []
        for request in self.running:
            if request.draw is None:
                return False
            sequences += request.draw.sequences
        return len(sequences) <= self.limits.max_batch_tokens and take_slots(sequences, self.pool)

    def _without_twins(self, prefills: list[tuple[Request, RowTask]]) -> list[tuple[Request, RowTask]]:
        """Without those that would compute the same block as one before them, and can have it when that one has."""
        chosen, seen = [], set()
        for request, task in prefills:
            block = self.prefix_cache.next_block(request, task)
            if block is None or block not in seen:
                chosen.append((request, task))
                seen.add(block)
        return chosen

    def _schedule_task(self, request: Request, task: RowTask, budget: int, chunks: list[Chunk]) -> int:
        """Add as much of the task as budget and blocks allow; answers the tokens spent."""
        if budget <= 0 or not request.is_running:
            return 0
        stop = min(task.end, task.start + budget)
        if not self._make_room(request, task, stop):
            return 0
        chunks.append(self._take(request, task, stop))
        return stop - chunks[-1].start

    # admission

    def _admit(self) -> None:
        if not self.waiting:
            return
        free = self.pool.num_free - sum(request.num_blocks_lacking() for request in self.running)
        num_sequences = sum(request.num_sequences for request in self.running)
        while self.waiting:
            request = self.waiting.first()
            needed = max(request.num_blocks_lacking(), self.swapping.num_blocks_away(request))
            has_room = needed + self._watermark <= free
            has_turn = num_sequences + request.num_sequences <= self.limits.max_running_sequences
            if self.running and not (has_room and has_turn):
                return
            self._start_running(self.waiting.pop_first())
            free -= needed
            num_sequences += request.num_sequences

    @property
    def _watermark(self) -> int:
        """Blocks kept free at admission, so that a newcomer is not preempted by the next decode."""
        return max(1, self.pool.num_blocks // 100)

    def _start_running(self, request: Request) -> None:
        self.swapping.swap_in(request)
        insort(self.running, request, key=self.policy.rank)
        request.is_running = True
        if request.admitted_at is None:
            request.admitted_at = time.monotonic()

    # choice of tasks

    def _ready_tasks(self, request: Request) -> list[RowTask]:
        """Tasks that may run now: all but those that wait for a common part, or for another task of their sequence."""
        request.take_apart()
        leaders: set[Sequence] = set()
        ready: list[RowTask] = []
        for place, task in enumerate(request.tasks):
            leader = task.leader
            if leader in leaders or not self._borrow(request, place):
                continue
            if leader._ahead:
                leader._align_ahead(task.draft)
            self.prefix_cache.reuse(request, task)
            leaders.add(leader)
            ready.append(task)
        return ready

    def _borrow(self, request: Request, place: int) -> bool:
        """Take over KV that a sequence with the same first tokens has; False: wait, an earlier task computes it.

        Waiting only for earlier tasks rules out cycles. KV of the current step is not taken: copies run before
        writes, so a block written now could not be copied now.
        """
        sequence = request.tasks[place].leader
        point = sequence._fork_point
        while point is not None and point.length > sequence._table.num_tokens:
            leader = point.leader
            if leader is None or leader is sequence:
                sequence._lead(point)
            else:
                task = next((task for task in request.tasks[:place] if task.leader is leader), None)
                computed = task.num_computed if task else leader._table.num_tokens
                if task and computed < point.length:
                    return False
                if computed > sequence._table.num_tokens:
                    sequence._adopt(leader, min(computed, point.length))
                if computed < point.length:
                    sequence._lead(point)
            point = point.before
        return True

    def _take(self, request: Request, task: RowTask, stop: int) -> Chunk:
        """Make slots for the chunk; there is room for them."""
        leader, start, first_new = task.leader, task.start, task.leader._table.num_tokens
        leader._table.extend(max(0, stop - first_new))
        if task.draft and stop > max(first_new, len(leader)):
            leader._ahead = task.draft[: stop - len(leader)]
        task.scheduled_from = start
        return Chunk(request, task, start, stop, first_new, max(start, task.next_row))

    # room

    def _make_room(self, request: Request, task: RowTask, stop: int) -> bool:
        """Free blocks until the chunk fits: idle sequences give theirs up first, then those whose turn is last."""
        table = task.leader._table
        while table.num_needed(max(0, stop - table.num_tokens)) > self.pool.num_free:
            if self._release_idle():
                continue
            victim = self.running[-1]
            if victim is request and len(self.running) == 1:
                if self.pool.num_deferred or any(other.scheduled_from is not None for other in request.tasks):
                    return False  # the blocks of this step may suffice for the others in the next one
                self.exhausted.append(request)
                self._stop_running(request)
                return False
            self.preempt(victim)
            if victim is request:
                return False
        return True

    def _release_idle(self) -> bool:
        """Let one idle sequence, of the newest request that has any, give up KV: private tails before shared blocks."""
        for request in reversed(self.running):
            named = request.named()
            idle = [sequence for sequence in request.group.live if sequence not in named and sequence._table.num_blocks]
            for release in (Sequence._give_up_tail, Sequence._give_up_kv):
                for sequence in sorted(idle, key=lambda candidate: candidate._last_awaited):
                    before = self.pool.num_free
                    release(sequence)
                    if self.pool.num_free > before:
                        return True
        return False

    def preempt(self, victim: Request) -> None:
        """All sequences of a running group give up their blocks and keep their tokens: swapped, or to be recomputed."""
        self.swapping.swap_out(victim)
        self._stop_running(victim)
        self.waiting.add_preempted(victim)
        self.num_preemptions += 1
        victim.num_preemptions += 1

    def _stop_running(self, request: Request) -> None:
        self.running.remove(request)
        request.is_running = False
        for task in request.tasks:
            task.scheduled_from = None
        if not self.swapping.num_blocks_away(request):
            request.group.give_up_kv()


def _shares(lengths: list[int], budget: int) -> list[int]:
    """How many tokens of each prompt run, given how many are left of each, in the policy's order.

    The first is sure of half of them, so that every prompt comes to its end; the shortest of the others come next, so
    that a short one does not wait until long ones have been read.
    """
    shares = [0] * len(lengths)
    if not lengths:
        return shares
    shares[0] = min(lengths[0], (budget + 1) // 2)
    left = budget - shares[0]
    for place in [*sorted(range(1, len(lengths)), key=lengths.__getitem__), 0]:
        more = min(lengths[place] - shares[place], left)
        shares[place] += more
        left -= more
    return shares
