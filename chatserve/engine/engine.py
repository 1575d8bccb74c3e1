"""`Engine`: one iteration at a time.

    schedule -> copy blocks -> forward -> sample | topk | logits | score -> resume decoders -> emit

`begin_step` and `end_step` touch all state and run on one thread (the event loop's); `Step.run` does the arithmetic
and may run in another. Nothing here knows asyncio or HTTP.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from chatserve.decoding.context import Context
from chatserve.decoding.errors import DecoderError
from chatserve.decoding.group import Rules, SequenceGroup
from chatserve.decoding.randomness import derive_seed
from chatserve.decoding.registry import Decoder, Registry
from chatserve.decoding.samples import Sample
from chatserve.decoding.sequence import Sequence
from chatserve.decoding.wants import ScoreWant, Warp, checked_wants
from chatserve.engine import sampler
from chatserve.engine.batching import build_batch, num_rows, row_owners
from chatserve.engine.generation import GenerationRequest, PublishedToken
from chatserve.engine.output import published
from chatserve.engine.request import Listener, Request
from chatserve.engine.rows import expand
from chatserve.engine.sampler import Processing, SamplingPlan, SamplingResult
from chatserve.engine.scheduler import Chunk, Limits, Scheduler
from chatserve.engine.validation import check_request
from chatserve.errors import ChatserveError, ContextLengthError, GenerationError, RequestError
from chatserve.kv import BlockPool, check_integrity
from chatserve.models.batch import Batch
from chatserve.models.runner import Runner
from chatserve.text import StopMatcher, Vocabulary

_log = logging.getLogger("chatserve.engine")
_EXTRA_PROMPTS = 1 << 40  # number of the first `Context.sequence` prompt among the forks a seed is derived for


@dataclass(slots=True)
class Step:
    """One iteration on its way through the model: what runs, and after `run` what came out."""

    runner: Runner
    batch: Batch
    plan: SamplingPlan
    chunks: list[Chunk]
    result: SamplingResult | None = None
    error: Exception | None = None

    def run(self) -> None:
        """Forward and sampling; errors are kept for `Engine.end_step`. Safe to call in a worker thread."""
        try:
            logits = self.runner.forward(self.batch)
            self.result = sampler.run(self.plan, logits)
        except Exception as error:  # whatever a model raises must end the step's requests, not the engine
            _log.exception("the forward failed")
            self.error = error


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Bounds of the engine (see `Config` for the fields)."""

    num_blocks: int
    block_size: int = 16
    max_batch_tokens: int = 512
    max_running_sequences: int = 256
    max_sequences: int = 512


class Engine:
    """Runs decoders over one model and one KV pool.

    Args:
        runner: the model; its pages are allocated here.
        vocabulary: its tokenizer.
        registry: the decoders there are.
        limits: sizes.

    Attributes:
        requests: all requests that have not ended, by arrival.
    """

    def __init__(self, runner: Runner, vocabulary: Vocabulary, registry: Registry, limits: EngineLimits) -> None:
        self.runner = runner
        self.vocabulary = vocabulary
        self.registry = registry
        self.limits = limits
        self.pool = BlockPool(limits.num_blocks, limits.block_size)
        self.scheduler = Scheduler(self.pool, Limits(limits.max_batch_tokens, limits.max_running_sequences))
        self.requests: dict[Request, None] = {}
        self.num_steps = 0
        self.num_finished = 0
        self.num_exhausted = 0
        self._num_arrivals = 0
        runner.allocate(limits.num_blocks, limits.block_size)

    # requests

    def submit(self, given: GenerationRequest, listener: Listener) -> Request:
        """Validate a request, start its decoder up to the first await, and queue it.

        Raises RequestError for whatever can be refused, GenerationError when the decoder breaks at once; nothing is
        held then. `listener` is called with each Delta, then once with None or the error that ended the request.
        """
        check_request(given, self.runner.info)
        decoder = self.registry.get(given.decoder or _default_decoder(given))
        params = decoder.make_params(given.decoder_params)
        request = self._make_request(given, decoder, params, listener)
        self._check_fits(request)
        self.requests[request] = None
        try:
            self._resume(request, None)
        except RequestError:
            self._release(request)
            raise
        except Exception as error:
            self._release(request)
            raise _as_generation_error(error, request) from error
        self.scheduler.add(request)
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
        """Counters and gauges of the moment."""
        return {
            "steps": self.num_steps,
            "requests_running": len(self.scheduler.running),
            "requests_waiting": len(self.scheduler.waiting),
            "requests_finished": self.num_finished,
            "requests_exhausted": self.num_exhausted,
            "sequences": sum(len(request.group.live) for request in self.requests),
            "blocks_total": self.pool.num_blocks,
            "blocks_used": self.pool.num_used,
            "preemptions": self.scheduler.total_preemptions,
        }

    def check_integrity(self) -> None:
        """Raise IntegrityError unless the pool's counts equal what the sequences of all requests hold."""
        check_integrity(self.pool, [sequence._table for request in self.requests for sequence in request.group.live])

    # one iteration

    def begin_step(self) -> Step | None:
        """Schedule and build the next step; None when there are no requests."""
        chunks = self._schedule()
        if not chunks:
            return None
        plan = SamplingPlan()
        batch = build_batch(chunks, self.pool, plan)
        self.num_steps += 1
        return Step(self.runner, batch, plan, chunks)

    def end_step(self, step: Step) -> None:
        """Take over what a step brought, resume the decoders whose awaits are complete, and emit their deltas."""
        touched: dict[Request, None] = {}
        for chunk in step.chunks:
            if not chunk.request.is_finished:
                self._advance(chunk)
                touched[chunk.request] = None
        broken = self._broken(step)
        for request in touched:
            if request in broken:
                self.fail(request, broken[request])
                continue
            assert step.result is not None
            for pending in request.pending:
                pending.collect(step.result)
            if not request.tasks:
                self._continue(request)

    def step(self) -> bool:
        """One whole iteration on this thread; False when there was nothing to run."""
        step = self.begin_step()
        if step is None:
            return False
        step.run()
        self.end_step(step)
        return True

    # the decoder's host

    def draw(self, request: Request, sequence: Sequence, logits: NDArray[np.float32], warp: Warp) -> Sample:
        """`Context.draw`."""
        epoch, ordinal = sequence._counter
        sequence._counter = (epoch, ordinal + 1)
        counter = (sequence._key, epoch, len(sequence), ordinal)
        token, logprob = sampler.draw_immediately(
            logits, request.processing, sequence.tokens, sequence.prompt_len, warp, counter
        )
        return Sample(token, logprob)

    # parts

    def _make_request(self, given: GenerationRequest, decoder: Decoder, params: object, listener: Listener) -> Request:
        num_sequences = max(1, decoder.num_sequences(params, given.sampling.n))
        if num_sequences > self.limits.max_sequences:
            raise RequestError(
                f"the request may hold {num_sequences} sequences; allowed are {self.limits.max_sequences}",
                param="n" if decoder.params.__struct_fields__ == () else "decoder_params",
                code="invalid_value",
            )
        sampling = given.sampling
        if sampling.seed is None:
            given = _replace_seed(given, random.getrandbits(63))
        group = SequenceGroup(self.pool, self._rules(given), self.limits.max_sequences)
        processing = Processing(sampling, group.rules.end_token_ids)
        self._num_arrivals += 1
        request = Request(given, group, processing, num_sequences, listener, self._num_arrivals)
        request.context = Context(group, given.sampling, _Host(self, request), request.trace)
        request.coroutine = decoder(request.context, request.prompt, params)
        if given.prompt_logprobs is not None:
            request.coroutine = _with_prompt_logprobs(request, request.coroutine)
        return request

    def _rules(self, given: GenerationRequest) -> Rules:
        sampling, info = given.sampling, self.runner.info
        room = info.max_model_len - len(given.prompt_token_ids)
        ends = () if sampling.ignore_eos else self.vocabulary.end_token_ids
        return Rules(
            vocabulary=self.vocabulary,
            vocab_size=info.vocab_size,
            end_token_ids=frozenset(ends) | frozenset(sampling.stop_token_ids),
            stop_strings=sampling.stop,
            stop_matcher=StopMatcher(sampling.stop, self.vocabulary) if sampling.stop else None,
            min_tokens=sampling.min_tokens,
            max_tokens=room if sampling.max_tokens is None else sampling.max_tokens,
            max_len=info.max_model_len,
        )

    def _check_fits(self, request: Request) -> None:
        needed = self.pool.blocks_for(request.prompt.prompt_len + 1) + request.num_sequences - 1
        if needed > self.pool.num_blocks:
            raise ContextLengthError(
                f"the request can never fit: it needs {needed} KV blocks of {self.pool.block_size} tokens"
                f" ({request.prompt.prompt_len} prompt tokens, {request.num_sequences} sequences),"
                f" the pool has {self.pool.num_blocks}",
                param="prompt",
            )

    def _schedule(self) -> list[Chunk]:
        while True:
            chunks = self.scheduler.schedule()
            exhausted, self.scheduler.exhausted = self.scheduler.exhausted, []
            for request in exhausted:
                self._finish_exhausted(request)
            if chunks or not self.requests:
                return chunks
            if not exhausted:
                raise RuntimeError("the scheduler found nothing to run although requests are waiting")

    def _advance(self, chunk: Chunk) -> None:
        """The chunk's tokens are computed: note it in the task, and give its KV to the task's other members."""
        task, request = chunk.task, chunk.request
        request.num_computed_tokens += chunk.stop - chunk.start
        request.num_rows += num_rows(chunk)
        task.scheduled_from = None
        task.next_row = max(task.next_row, chunk.stop)
        if task.next_row >= task.end:
            request.tasks.remove(task)
            for follower in task.followers:
                if follower._table.num_tokens < len(follower):
                    follower._adopt(task.leader, len(follower))

    def _broken(self, step: Step) -> dict[Request, GenerationError]:
        """Requests that a failed forward, or rows that mean nothing, have ended."""
        if step.error is not None:
            error = GenerationError(f"the model failed: {step.error}", code="model_error")
            return {chunk.request: error for chunk in step.chunks}
        assert step.result is not None
        if not step.result.bad_rows:
            return {}
        message = "the model gave NaN, or every next token is forbidden"
        return {
            owner: GenerationError(message, code="model_error")
            for row, owner in enumerate(row_owners(step.chunks))
            if row in step.result.bad_rows
        }

    def _continue(self, request: Request) -> None:
        """Resume the decoder with the answers of its await."""
        answers = [pending.answer() for pending in request.pending]
        try:
            self._resume(request, answers)
        except Exception as error:
            self.fail(request, _as_generation_error(error, request))

    def _resume(self, request: Request, answers: list[object] | None) -> None:
        """Step the coroutine until it awaits rows, has ended, or all choices are finished; emit what is new."""
        while True:
            try:
                wants = checked_wants(request.coroutine.send(answers))
            except StopIteration:
                self._emit(request)
                self._finish(request)
                return
            self._emit(request)
            if request.num_open == 0:
                self._finish(request)
                return
            if request.num_rows > request.max_rows:
                raise DecoderError(f"the decoder asked for more than {request.max_rows} rows without coming to an end")
            request.pending, request.tasks = expand(wants, request.num_top)
            request.num_awaits += 1
            for want in wants:
                for sequence in want.sequences:
                    sequence.last_awaited = request.num_awaits
            if request.tasks:
                return
            answers = [pending.answer() for pending in request.pending]

    def _emit(self, request: Request) -> None:
        """Send the deltas of all choices that the decoder has touched."""
        context = request.context
        assert context is not None
        if not context._dirty:
            return
        trace: tuple[dict[str, object], ...] = ()
        if request.trace:
            trace, request.trace[:] = tuple(request.trace), []
        for choice in context._dirty:
            delta = request.outputs[choice.index].advance(choice, trace)
            trace = ()
            if delta is not None:
                request.num_open -= delta.finish_reason is not None
                request.listener(delta)
        context._dirty.clear()

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
        self._release(request)
        self.num_finished += 1
        request.listener(None)

    def _finish_exhausted(self, request: Request) -> None:
        """A request that has outgrown the pool on its own ends with "length": every choice as its source stands."""
        self.num_exhausted += 1
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
        try:
            request.coroutine.close()
        except BaseException as error:  # a decoder that refuses to close must not take the engine with it
            _log.warning("request %s: its decoder did not close cleanly: %r", request.given.request_id, error)
        request.group.close()
        self.scheduler.remove(request)
        self.requests.pop(request, None)


class _Host:
    """The engine as one request's context sees it."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self._engine = engine
        self._request = request
        self._num_prompts = 0

    def draw(self, sequence: Sequence, logits: NDArray[np.float32], warp: Warp) -> Sample:
        return self._engine.draw(self._request, sequence, logits, warp)

    def new_sequence(self, tokens: list[int], parent: Sequence | None) -> Sequence:
        group = self._request.group
        if parent is not None:
            child = parent.fork()
            child._become_prompt(tokens)
            return child
        self._num_prompts += 1
        key = derive_seed(self._request.prompt._key, _EXTRA_PROMPTS + self._num_prompts)
        return Sequence(group, tokens, len(tokens), key)


def _default_decoder(given: GenerationRequest) -> str:
    if given.sampling.n > 1:
        return "parallel"
    return "greedy" if given.sampling.temperature == 0 else "sampling"


def _replace_seed(given: GenerationRequest, seed: int) -> GenerationRequest:
    return msgspec.structs.replace(given, sampling=msgspec.structs.replace(given.sampling, seed=seed))


def _as_generation_error(error: Exception, request: Request) -> GenerationError:
    """What the client sees of an exception that came out of a decoder."""
    if isinstance(error, GenerationError):
        return error
    _log.error("request %s: its decoder raised", request.given.request_id, exc_info=error)
    return DecoderError(f"the decoder raised {type(error).__name__}: {error}")


def _continues(source: Sequence, samples: list[Sample]) -> bool:
    """Whether the source still begins with the published tokens."""
    return source.generated[: len(samples)] == [sample.token for sample in samples]


async def _with_prompt_logprobs(request: Request, decoder: Coroutine[Any, Any, None]) -> None:
    """Run the decoder, and beside it score the prompt's tokens into `request.prompt_logprobs`."""
    context = request.context
    assert context is not None
    await context.gather(_score_prompt(request), decoder)


async def _score_prompt(request: Request) -> None:
    prompt, vocabulary = request.prompt.tokens, request.group.rules.vocabulary
    want = ScoreWant([request.prompt], [[*prompt[1:], prompt[-1]]], "raw")  # the last row predicts the answer: unused
    want.drafts, want.last = None, len(prompt)
    [scored] = await want
    first = PublishedToken(prompt[0], vocabulary.token_bytes(prompt[0]), None)
    rest = [published(sample, vocabulary.token_bytes(sample.token), vocabulary) for sample in scored[:-1]]
    request.prompt_logprobs = [first, *rest]
