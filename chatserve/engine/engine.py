"""`Engine`: one iteration at a time.

    schedule -> copy blocks -> forward -> sample | topk | logits | score -> resume decoders -> emit

`begin_step` and `end_step` touch all state and run on one thread (the event loop's); `Step.run` does the arithmetic
and may run in another. Nothing here knows asyncio or HTTP.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from time import perf_counter
from typing import Any

from chatserve.decoding.errors import DecoderError
from chatserve.decoding.registry import Registry
from chatserve.decoding.samples import Sample
from chatserve.decoding.sampling import Sampling
from chatserve.decoding.sequence import Sequence
from chatserve.decoding.wants import checked_wants
from chatserve.engine.batching import BatchBuilder, num_rows, row_owners
from chatserve.engine.decoder_failure import decoder_failure
from chatserve.engine.generation import Delta, GenerationRequest
from chatserve.engine.named_prefixes import NamedPrefixes
from chatserve.engine.plain_draws import read_draws
from chatserve.engine.policy import make_policy
from chatserve.engine.preemption import PreemptionCosts
from chatserve.engine.prefix_cache import PrefixCache
from chatserve.engine.request import Listener, Request
from chatserve.engine.request_factory import EngineLimits, RequestFactory
from chatserve.engine.sampler import SamplingPlan
from chatserve.engine.scheduler import Chunk, Limits, Scheduler, Work
from chatserve.engine.statistics import Statistics
from chatserve.engine.step import Step
from chatserve.engine.swapping import Swapping
from chatserve.engine.watchdog import Watchdog, is_users_interrupt
from chatserve.errors import ChatserveError, DeadlineError, GenerationError, RequestError
from chatserve.kv import BlockPool, check_integrity
from chatserve.models.batch import Batch
from chatserve.models.runner import Runner
from chatserve.text import Vocabulary

_log = logging.getLogger("chatserve.engine")


class Engine:
    """Runs decoders over one model and one KV pool.

    Args:
        runner: the model; its pages are allocated here.
        vocabulary: its tokenizer.
        registry: the decoders there are.
        limits: sizes.

    Attributes:
        requests: all requests that have not ended, by arrival.
        decoder_seconds: wall time spent in the code of each decoder, by its name.
    """

    def __init__(self, runner: Runner, vocabulary: Vocabulary, registry: Registry, limits: EngineLimits) -> None:
        self.runner = runner
        self.vocabulary = vocabulary
        self.registry = registry
        self.limits = limits
        self.pool = BlockPool(limits.num_blocks, limits.block_size)
        self.prefix_cache = PrefixCache(self.pool, limits.prefix_caching)
        max_prefill_tokens = limits.max_prefill_tokens or limits.max_batch_tokens
        sizes = Limits(limits.max_batch_tokens, max_prefill_tokens, limits.max_running_sequences)
        block_bytes = runner.info.kv_bytes_per_token * limits.block_size
        self.costs = PreemptionCosts(block_bytes, limits.block_size)
        swapping = Swapping(self.pool, limits.num_host_blocks, limits.preemption, self.costs)
        self.scheduler = Scheduler(self.pool, sizes, self.prefix_cache, make_policy(limits.policy), swapping)
        self._batches = BatchBuilder(self.pool)
        self.requests: dict[Request, None] = {}
        self._timed: dict[Request, float] = {}  # those with a deadline, by `time.monotonic`
        self._watchdog = Watchdog(limits.decoder_timeout)
        self.decoder_seconds: defaultdict[str, float] = defaultdict(float)
        self.statistics = Statistics()
        self._factory = RequestFactory(runner.info, vocabulary, registry, self.pool, limits, self._watchdog)
        runner.allocate(limits.num_blocks, limits.block_size, swapping.space.num_blocks)

    # requests

    def submit(self, given: GenerationRequest, listener: Listener) -> Request:
        """Validate a request, start its decoder up to the first await, and queue it.

        Raises RequestError for whatever can be refused, GenerationError when the decoder breaks at once; nothing is
        held then. `listener` is called with each Delta, then once with None or the error that ended the request.
        """
        return self._open(self._factory.make(given, listener))

    def register_prefix(
        self,
        name: str,
        token_ids: tuple[int, ...],
        listener: Listener,
        messages: list[dict[str, Any]] | None = None,
    ) -> Request:
        """Compute a prefix and pin it; `listener` is called with None when it can be used. `messages` are what it was
        rendered from, if it was.

        Raises RequestError, as `submit` does; pinned prefixes may take at most half of the pool.
        """
        self.prefixes.check_room(name, len(token_ids))

        def listen(news: Delta | ChatserveError | None) -> None:
            if news is None and not self.prefixes.holds(name, token_ids):
                news = GenerationError(f"prefix {name!r} did not fit into the pool beside other requests")
            listener(news)

        given = GenerationRequest(prompt_token_ids=token_ids, sampling=Sampling(max_tokens=1), request_id=name)
        return self._open(self._factory.make(given, listen, self.prefixes.computing(name, messages)))

    @property
    def prefixes(self) -> NamedPrefixes:
        """The registered prefixes."""
        return self._factory.prefixes

    def _open(self, request: Request) -> Request:
        """Start the decoder up to its first await and queue the request."""
        self.requests[request] = None
        try:
            self._resume(request, None)
        except RequestError:
            self._release(request)
            raise
        except BaseException as error:  # a plugin may raise anything, SystemExit and CancelledError included
            failure = error if is_users_interrupt(error) else decoder_failure(error, request)
            self._release(request)
            if failure is error:
                raise
            raise failure from error
        if not request.is_finished:
            self.scheduler.add(request)
            if request.given.timeout is not None:
                self._timed[request] = request.submitted_at + request.given.timeout
        return request

    def abort(self, request: Request) -> None:
        """End a request whose client has gone; its blocks come back at once. The listener is not called."""
        if not request.is_finished:
            self._release(request)

    def fail(self, request: Request, error: ChatserveError) -> None:
        """End a request with an error; its blocks come back at once."""
        if not request.is_finished:
            self._release(request)
            request.listener(error)

    @property
    def has_work(self) -> bool:
        return bool(self.requests)

    def stats(self) -> dict[str, float]:
        """Counters and gauges of the moment (see `Statistics`)."""
        return self.statistics.snapshot(self)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless the pool's counts equal what the sequences of all requests hold."""
        tables = [sequence._table for request in self.requests for sequence in request.group.live]
        check_integrity(self.pool, tables + self.prefixes.tables())

    # one iteration

    def begin_step(self) -> Step | None:
        """End overdue requests, then schedule and build the next step; None when there are no requests."""
        with self.statistics.timed("scheduling"):
            if self._timed:
                self._end_overdue()
            work = self._schedule()
            if not work:
                return None
            plan = SamplingPlan()
            batch = self._batches.build(work, plan)
            return Step(self.runner, batch, plan, work, self._moves())

    def foresee(self) -> None:
        """Prepare what most likely follows the step that runs; optional, and changes nothing that could be seen."""
        self._batches.foresee()

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for request, deadline in list(self._timed.items()):
            if deadline <= now:
                message = f"the request did not end within its timeout of {request.given.timeout:g} s"
                self.fail(request, DeadlineError(message))

    def _moves(self) -> Batch | None:
        out, back = self.scheduler.swapping.take_moves()
        return Batch.of_moves(out, back) if len(out) or len(back) else None

    def end_step(self, step: Step) -> None:
        """Take over what a step brought, resume the decoders whose awaits are complete, and emit their deltas."""
        self.statistics.count_step(step)
        self.costs.learn_move(step.num_moved_blocks, step.swapping_seconds)
        self.costs.learn_forward(step.batch.num_tokens, step.forward_seconds)
        with self.statistics.timed("decoding"):
            for request, error in self._broken(step).items():
                self.fail(request, error)
            self._advance_draws(step.work.draws)
            advanced: dict[Request, None] = {}
            for chunk in step.work.chunks:
                if not chunk.request.is_finished:
                    self._advance(chunk)
                    advanced[chunk.request] = None
            with self._watchdog:
                self._answer_draws(step)
                for request in advanced:
                    self._collect(request, step)

    def step(self) -> bool:
        """One whole iteration on this thread; False when there was nothing to run."""
        step = self.begin_step()
        if step is None:
            return False
        step.run()
        self.end_step(step)
        return True

    # parts

    def _schedule(self) -> Work:
        while True:
            work = self.scheduler.schedule()
            exhausted, self.scheduler.exhausted = self.scheduler.exhausted, []
            for request in exhausted:
                self._finish_exhausted(request)
            if work or not self.requests:
                return work
            if not exhausted:
                raise RuntimeError("the scheduler found nothing to run although requests are waiting")

    def _advance_draws(self, requests: list[Request]) -> None:
        """The last tokens of the plain draws' sequences are computed: index the blocks that became full."""
        for request in requests:
            draw = request.draw
            if draw is None or request.is_finished:
                continue
            request.num_computed_tokens += len(draw.sequences)
            request.num_rows += len(draw.sequences)
            for sequence in draw.sequences:
                if not sequence._table.num_open:
                    self.prefix_cache.contribute(request, sequence)

    def _answer_draws(self, step: Step) -> None:
        """Resume the decoders of the step's plain draws; their rows, and so their answers, come first and in order."""
        if step.result is None:
            return
        samples, first = read_draws(step.result), 0
        for request in step.work.draws:
            assert request.draw is not None
            stop = first + len(request.draw.sequences)
            if not request.is_finished:
                self._continue(request, [samples[first:stop]])
            first = stop

    def _advance(self, chunk: Chunk) -> None:
        """The chunk's tokens are computed: note it in the task, and give its KV to the task's other members."""
        task, request = chunk.task, chunk.request
        request.num_computed_tokens += chunk.stop - chunk.start
        request.num_rows += num_rows(chunk)
        self.statistics.num_recomputed_tokens += max(
            0, min(chunk.stop, task.leader._num_given_up) - max(chunk.start, chunk.first_new)
        )
        task.scheduled_from = None
        task.next_row = max(task.next_row, chunk.stop)
        self.prefix_cache.contribute(request, task.leader)
        if task.next_row >= task.end:
            request.tasks.remove(task)
            for follower in task.followers:
                if follower._table.num_tokens < len(follower):
                    follower._adopt(task.leader, len(follower))

    def _broken(self, step: Step) -> dict[Request, GenerationError]:
        """Requests that a failed forward, or rows that mean nothing, have ended."""
        if step.error is not None:
            error = GenerationError(f"the model failed: {step.error}", code="model_error")
            return dict.fromkeys(step.work.requests(), error)
        assert step.result is not None
        if not step.result.bad_rows:
            return {}
        message = "the model gave NaN, or every next token is forbidden"
        return {
            owner: GenerationError(message, code="model_error")
            for row, owner in enumerate(row_owners(step.work))
            if row in step.result.bad_rows
        }

    def _collect(self, request: Request, step: Step) -> None:
        """Take over the step's answers; resume the decoder when its await is complete."""
        assert step.result is not None
        for pending in request.pending:
            pending.collect(step.result)
        if request.tasks:
            return
        self._continue(request, [pending.answer() for pending in request.pending])

    def _continue(self, request: Request, answers: list[object]) -> None:
        """Resume the decoder; whatever it raises ends its request."""
        try:
            self._resume(request, answers)
        except BaseException as error:  # as above
            if is_users_interrupt(error):
                raise
            self.fail(request, decoder_failure(error, request))

    def _resume(self, request: Request, answers: list[object] | None) -> None:
        """Step the coroutine until it awaits rows, has ended, or all choices are finished; emit what is new."""
        while True:
            try:
                wants = checked_wants(self._send(request, answers))
            except StopIteration:
                self._emit(request)
                self._finish(request)
                return
            self._emit(request)
            if request.num_open == 0:
                self._finish(request)
                return
            if request.num_rows > request.max_rows or request.num_awaits >= request.next_check:
                request.check_progress(wants)
            request.begin_await(wants)
            if request.draw is not None or request.tasks:
                return
            answers = [pending.answer() for pending in request.pending]

    def _send(self, request: Request, answers: list[object] | None) -> object:
        """Run the decoder up to its next await."""
        begin = perf_counter()
        try:
            return self._watchdog.call(request.coroutine.send, answers)
        finally:
            self.decoder_seconds[request.decoder_name] += perf_counter() - begin

    def _emit(self, request: Request) -> None:
        """Send the deltas of all choices that the decoder has touched."""
        context = request.context
        assert context is not None
        dirty = context._dirty
        if not dirty:
            return
        trace: tuple[dict[str, object], ...] = ()
        if request.trace:
            trace, request.trace[:] = tuple(request.trace), []
        for choice in dirty:
            delta = request.outputs[choice.index].advance(choice, trace)
            trace = ()
            if delta is not None:
                if delta.finish_reason is not None:
                    request.num_open -= 1
                request.listener(delta)
        dirty.clear()

    def _finish(self, request: Request) -> None:
        """The decoder has come to its end: open choices stop, everything is released."""
        context = request.context
        assert context is not None
        silent = [choice.index for choice in context._choices if choice.source is None and choice.finish_reason is None]
        if silent:
            raise DecoderError(f"the decoder returned without publishing choice {silent[0]}")
        self._close_choices(request, "stop")

    def _close_choices(self, request: Request, reason: str) -> None:
        context = request.context
        assert context is not None
        for choice in context._choices:
            choice.finish(reason)
            context._dirty[choice] = None
        self._emit(request)
        self.scheduler.policy.learn(request)
        self._release(request)
        self.statistics.num_finished += 1
        request.listener(None)

    def _finish_exhausted(self, request: Request) -> None:
        """A request that has outgrown the pool on its own ends with "length": every choice as its source stands."""
        self.statistics.num_exhausted += 1
        context = request.context
        assert context is not None
        live = list(request.group.live)
        for choice in context._choices:
            source = choice.source or (live[choice.index] if choice.index < len(live) else live[0])
            if choice.finish_reason is None and _continues(source, choice.samples):
                choice.publish(source, None)
        self._close_choices(request, "length")

    def _release(self, request: Request) -> None:
        """Close the coroutine first, so that its `finally` blocks see a live group, then free what it left."""
        request.is_finished = True
        self.statistics.num_published_tokens += request.usage.completion_tokens
        try:
            self._watchdog.call(request.coroutine.close)
        except BaseException as error:  # a decoder that refuses to close must not take the engine with it
            _log.warning("request %s: its decoder did not close cleanly: %r", request.given.request_id, error)
        request.group.close()
        self.scheduler.remove(request)
        self.requests.pop(request, None)
        self._timed.pop(request, None)


def _continues(source: Sequence, samples: list[Sample]) -> bool:
    """Whether the source still begins with the published tokens."""
    return source.generated[: len(samples)] == [sample.token for sample in samples]
