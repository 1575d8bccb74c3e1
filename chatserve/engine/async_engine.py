"""`AsyncEngine`: drives an `Engine` on an asyncio loop, and `Generation`, the stream of one request.

State is touched on the loop's thread only, in plain callbacks outside any task, so that nothing a decoder does can
cancel the engine. The forward and the sampler run in one worker thread; while they do, the loop writes to clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from chatserve.config import Config
from chatserve.decoding.registry import DecoderInfo
from chatserve.engine.building import build_engine
from chatserve.engine.engine import Engine
from chatserve.engine.generation import Delta, GenerationRequest, PublishedToken, Usage
from chatserve.engine.latencies import DecoderLatencies, Latencies, Stopwatch
from chatserve.engine.request import Request
from chatserve.engine.step import Step
from chatserve.errors import ChatserveError, GenerationError, QueueFullError, RequestError, UnavailableError
from chatserve.models.runner import ModelInfo
from chatserve.text import Vocabulary
from chatserve.text.chat_template import ChatTemplate

_log = logging.getLogger("chatserve.engine")

_SWITCH_INTERVAL = 0.005
"""Seconds after which the interpreter's lock is taken from the loop's thread, and given to the worker, in any case. The
loop gives it up at once instead: the step comes first, clients are written to while it runs."""


class Generation:
    """The answers to one request as an async iterator of `Delta`; raises what broke the request, in its place."""

    def __init__(self, engine: AsyncEngine, num_choices: int) -> None:
        """For `AsyncEngine.submit`."""
        self.num_choices = num_choices
        self._engine = engine
        self._request: Request | None = None
        self._news: deque[Delta] = deque()
        self._end: ChatserveError | None = None
        self._has_ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._stopwatch = Stopwatch()

    @property
    def request_id(self) -> str:
        return self.request.given.request_id

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        return self.request.usage

    @property
    def prompt_logprobs(self) -> list[PublishedToken] | None:
        """The prompt's tokens, the first without log-probability, when the request asked for them; known before the
        first delta."""
        return self.request.prompt_logprobs

    def cancel(self) -> None:
        """Stop the request, queued or running; its blocks come back. Idempotent; iteration ends."""
        if not self._has_ended:
            self._latencies.ends["abort"] += 1
            self._deliver(None)
            self._news.clear()
            self._engine._abort(self.request)

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Delta:
        while not self._news:
            if self._has_ended:
                if self._end is not None:
                    error, self._end = self._end, None
                    raise error
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._news.popleft()

    @property
    def request(self) -> Request:
        """The request inside the engine; read only."""
        assert self._request is not None
        return self._request

    @property
    def _latencies(self) -> DecoderLatencies:
        """Where its times are counted; what a decoder does before its first await has no name yet."""
        return self._engine.latencies.of(self._request.decoder_name if self._request is not None else "")

    def _listen(self, news: Delta | ChatserveError | None) -> None:
        self._stopwatch.note(news, self._latencies)
        self._deliver(news)

    def _deliver(self, news: Delta | ChatserveError | None) -> None:
        if isinstance(news, Delta):
            self._news.append(news)
        else:
            self._has_ended, self._end = True, news
            self._engine._open.discard(self)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None


class AsyncEngine:
    """An engine that runs while the loop runs.

    Args:
        engine: the engine; nobody else may touch it from now on.
        chat_template: the model's, if it has one.
        max_queue: requests that may wait; more are refused.

    Attributes:
        status: "ready", "draining" or "dead".
        latencies: how long its clients waited.
    """

    def __init__(self, engine: Engine, chat_template: ChatTemplate | None = None, max_queue: int = 1024) -> None:
        self.chat_template = chat_template
        self.latencies = Latencies()
        self.status = "ready"
        self._engine = engine
        self._max_queue = max_queue
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="chatserve-forward")
        self._step: Step | None = None
        self._open: set[Generation] = set()
        self._idle_waiters: list[asyncio.Future[None]] = []

    @classmethod
    async def create(cls, config: Config) -> AsyncEngine:
        """Load the model that `config` names and start an engine on it; raises ModelLoadError or ConfigError."""
        loaded, engine = await asyncio.get_running_loop().run_in_executor(None, build_engine, config)
        return cls(engine, loaded.chat_template, config.max_queue)

    @property
    def num_blocks(self) -> int:
        """KV blocks in the pool."""
        return self._engine.pool.num_blocks

    @property
    def info(self) -> ModelInfo:
        return self._engine.runner.info

    @property
    def vocabulary(self) -> Vocabulary:
        return self._engine.vocabulary

    def list_decoders(self) -> list[DecoderInfo]:
        return self._engine.registry.list()

    def stats(self) -> dict[str, float]:
        """Counters and gauges of the moment."""
        return self._engine.stats()

    def decoder_seconds(self) -> dict[str, float]:
        """Wall time spent so far in the code of each decoder, by its name."""
        return dict(self._engine.decoder_seconds)

    def check_room(self, num_requests: int = 1) -> None:
        """Refuse so many requests now, before any work is done for them, if they cannot be taken. Any thread may ask.

        Raises UnavailableError, QueueFullError, or RequestError for more requests than ever may wait.
        """
        if self.status != "ready":
            raise UnavailableError(f"the server is {self.status}")
        if num_requests > max(1, self._max_queue):
            raise RequestError(
                f"prompt holds {num_requests} prompts; at most {self._max_queue} requests may wait",
                param="prompt",
                code="invalid_value",
            )
        if len(self._engine.scheduler.waiting) + num_requests > self._max_queue:
            raise QueueFullError(f"too many requests are waiting already (at most {self._max_queue}); try again later")

    async def submit(self, given: GenerationRequest) -> Generation:
        """Validate and queue a request; its decoder has been started when this returns.

        Raises RequestError, QueueFullError, UnavailableError, or GenerationError when the decoder breaks at once.
        """
        generation = Generation(self, given.sampling.n)
        return await self._start(generation, lambda: self._engine.submit(given, generation._listen))

    async def submit_all(self, requests: Iterable[GenerationRequest]) -> list[Generation]:
        """Submit all requests or none: a refusal of one cancels those before it, and is raised."""
        accepted: list[Generation] = []
        try:
            for request in requests:
                accepted.append(await self.submit(request))  # noqa: PERF401  cancelled below when a later one is refused
        except BaseException:
            for generation in accepted:
                generation.cancel()
            raise
        return accepted

    async def register_prefix(
        self, name: str, token_ids: Sequence[int], messages: list[dict[str, Any]] | None = None
    ) -> None:
        """Compute a prefix and pin it under `name`; it can be used when this returns. Raises as `submit` does.

        `messages` are what it was rendered from, if it was.
        """
        generation = Generation(self, 1)
        ids = tuple(token_ids)
        await self._start(generation, lambda: self._engine.register_prefix(name, ids, generation._listen, messages))
        async for _ in generation:
            pass

    def prefix_messages(self, name: str) -> list[dict[str, Any]] | None:
        """The messages a prefix was rendered from; None when it was not, or is not registered."""
        return self._engine.prefixes.messages(name)

    def prefixes(self) -> dict[str, int]:
        """Number of tokens of each registered prefix by name."""
        return self._engine.prefixes.lengths()

    def remove_prefix(self, name: str) -> None:
        """Unpin a prefix; running requests keep what they share. Raises RequestError for an unknown name."""
        self._engine.prefixes.remove(name)

    async def _start(self, generation: Generation, begin: Callable[[], Request]) -> Generation:
        """Let `begin` open the generation's request in a plain callback of the loop."""
        loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = loop.create_future()
        loop.call_soon(self._submit, begin, generation, started)
        try:
            await started
        except asyncio.CancelledError:
            if generation._request is not None:
                generation.cancel()
            raise
        return generation

    async def shutdown(self, grace: float) -> None:
        """Refuse new requests, give running ones `grace` seconds, then end the rest with an error. Idempotent."""
        if self.status == "ready":
            self.status = "draining"
        try:
            await asyncio.wait_for(self._idle(), grace)
        except TimeoutError:
            self._fail_all(UnavailableError("the server is shutting down"))
            await self._idle()
        self._worker.shutdown(wait=True)
        self._engine.runner.close()

    # callbacks on the loop, outside any task

    def _submit(self, begin: Callable[[], Request], generation: Generation, started: asyncio.Future[None]) -> None:
        if started.cancelled():
            return
        try:
            self.check_room()
            generation._request = begin()
            self.latencies.num_prompt_tokens += generation.usage.prompt_tokens
        except ChatserveError as error:
            started.set_exception(error)
        except BaseException as error:  # a fault of ours: the caller must not wait for ever
            started.set_exception(GenerationError(f"internal error: {error!r}"))
            self._die(error)
        else:
            if not generation._has_ended:
                self._open.add(generation)
            started.set_result(None)
            if self._step is None:
                self._begin()

    def _begin(self) -> None:
        try:
            self._step = self._engine.begin_step()
            if self._step is not None:
                running = asyncio.get_running_loop().run_in_executor(self._worker, self._step.run)
                running.add_done_callback(self._end)
                self._step.has_begun.wait(_SWITCH_INTERVAL)
                self._engine.foresee()
                return
        except BaseException as error:
            self._step = None
            self._die(error)
            return
        self._wake_idle_waiters()

    def _end(self, running: asyncio.Future[None]) -> None:
        step, self._step = self._step, None
        assert step is not None
        try:
            running.result()
            self._engine.end_step(step)
        except BaseException as error:
            self._die(error)
            return
        self._begin()

    def _abort(self, request: Request) -> None:
        asyncio.get_running_loop().call_soon(self._engine.abort, request)

    def _die(self, error: BaseException) -> None:
        """A fault of ours: every caller gets an error, and nothing is accepted any more."""
        _log.critical("the engine has died", exc_info=error)
        self.status = "dead"
        self._fail_all(GenerationError(f"the engine has died: {error!r}", code="engine_dead"))
        self._wake_idle_waiters()

    def _fail_all(self, error: ChatserveError) -> None:
        """Answer every caller, even where the engine is so broken that it cannot end a request."""
        for generation in list(self._open):
            try:
                self._engine.fail(generation.request, error)
            except Exception:
                _log.exception("request %s cannot be ended", generation.request_id)
            if not generation._has_ended:
                generation._listen(error)

    def _wake_idle_waiters(self) -> None:
        for waiter in self._idle_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._idle_waiters.clear()

    async def _idle(self) -> None:
        """Wait until no step runs and no request is left."""
        while self._step is not None and self.status != "dead":
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle_waiters.append(waiter)
            await waiter
