"""`LLM` and `AsyncLLM`: the engine without a server.

llm = LLM()
for answer in llm.generate(["Once upon a time"], decoder="sampling", max_tokens=32, seed=1):
    print(answer.outputs[0].text)
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from chatserve.config import DEFAULT_MODEL, Config
from chatserve.decoding.sampling import Sampling
from chatserve.engine.async_engine import AsyncEngine, Generation
from chatserve.engine.building import build_engine
from chatserve.engine.engine import Engine
from chatserve.engine.generation import Delta, GenerationRequest, PublishedToken, Usage
from chatserve.engine.interrupts import DeferredInterrupts
from chatserve.engine.request import Request
from chatserve.errors import ChatserveError, RequestError
from chatserve.text import Vocabulary

Prompt: TypeAlias = str | Sequence[int]


@dataclass(slots=True)
class Output:
    """One choice: its text, its tokens (the end token included), why it ended ("stop" or "length"), and the token
    records when `top_logprobs` was given."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    tokens: list[PublishedToken] = field(default_factory=list)


@dataclass(slots=True)
class Completion:
    """All choices for one prompt."""

    prompt_token_ids: list[int]
    outputs: list[Output]
    usage: Usage
    trace: list[dict[str, Any]]


class LLM:
    """A model and an engine on the calling thread; prompts given together share steps and KV.

    Calls from several threads take turns. Ctrl-C ends a call between two steps, and releases what it held.

    Args:
        model: as in `Config.model`, or a whole `Config`.
        settings: further fields of `Config`.
    """

    def __init__(self, model: str | Config = DEFAULT_MODEL, **settings: Any) -> None:
        config = model if isinstance(model, Config) else Config(model=model, **settings)
        self._loaded, self.engine = build_engine(config)
        self._lock = threading.Lock()

    def generate(
        self, prompts: Prompt | Iterable[Prompt], decoder: str | None = None, **params: Any
    ) -> list[Completion]:
        """Complete prompts (texts or token ids), in order.

        `params` are fields of `Sampling`; others are parameters of the decoder. Raises RequestError for what can't be
        run (nothing is run then), GenerationError when a decoder breaks.
        """
        requests = [_to_request(self._loaded.vocabulary, prompt, decoder, params) for prompt in _listed(prompts)]
        with self._lock:
            return run_all(self.engine, requests)

    def chat(self, messages: list[dict[str, Any]], decoder: str | None = None, **params: Any) -> Completion:
        """Answer a conversation of ``{"role": ..., "content": ...}`` messages."""
        template = self._loaded.chat_template
        if template is None:
            raise RequestError("messages: the model has no chat template; use generate", param="messages")
        prompt = self._loaded.vocabulary.encode(template.render(messages))
        return self.generate([prompt], decoder, **params)[0]

    def stats(self) -> dict[str, float]:
        """Counters and gauges of the engine."""
        return self.engine.stats()


class AsyncLLM:
    """The same on an asyncio loop; make it with `AsyncLLM.create`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    @classmethod
    async def create(cls, model: str | Config = DEFAULT_MODEL, **settings: Any) -> AsyncLLM:
        """Load a model; arguments as for `LLM`. Any number of requests may wait, unless `max_queue` says otherwise."""
        settings = {"max_queue": sys.maxsize, **settings}
        config = model if isinstance(model, Config) else Config(model=model, **settings)
        return cls(await AsyncEngine.create(config))

    async def generate(
        self, prompts: Prompt | Iterable[Prompt], decoder: str | None = None, **params: Any
    ) -> list[Completion]:
        """`LLM.generate`, awaited."""
        prompts = _listed(prompts)
        given = [_to_request(self.engine.vocabulary, prompt, decoder, params) for prompt in prompts]
        generations = await self.engine.submit_all(given)
        try:
            return list(await asyncio.gather(*(_collect_async(generation) for generation in generations)))
        finally:
            for generation in generations:
                generation.cancel()

    async def stream(self, prompt: Prompt, decoder: str | None = None, **params: Any) -> AsyncIterator[Delta]:
        """The deltas of one prompt as they come; leaving the loop early cancels the request."""
        generation = await self.engine.submit(_to_request(self.engine.vocabulary, prompt, decoder, params))
        try:
            async for delta in generation:
                yield delta
        finally:
            generation.cancel()

    async def close(self) -> None:
        """Stop the engine; running requests end with an error."""
        await self.engine.shutdown(0)


class _Collector:
    """Builds a `Completion` from what a request's listener hears."""

    def __init__(self, num_choices: int) -> None:
        self.outputs = [Output() for _ in range(num_choices)]
        self.trace: list[dict[str, Any]] = []
        self.error: ChatserveError | None = None

    def __call__(self, news: Delta | ChatserveError | None) -> None:
        if isinstance(news, ChatserveError):
            self.error = news
        elif news is not None:
            output = self.outputs[news.choice]
            output.text += news.text
            output.tokens += news.tokens
            output.finish_reason = news.finish_reason or output.finish_reason
            self.trace += news.trace

    def completion(self, request: Request) -> Completion:
        if self.error is not None:
            raise self.error
        for output, token_ids in zip(self.outputs, request.published_token_ids(), strict=True):
            output.token_ids = token_ids
        return Completion(list(request.given.prompt_token_ids), self.outputs, request.usage, self.trace)


def run_all(engine: Engine, given: Iterable[GenerationRequest]) -> list[Completion]:
    """Run requests on an engine until all have ended, on this thread; nothing is left running when one is refused."""
    started: list[tuple[Request, _Collector]] = []
    with DeferredInterrupts() as interrupts:
        try:
            for one in given:
                collector = _Collector(one.sampling.n)
                started.append((engine.submit(one, collector), collector))
                interrupts.check()
            while not all(request.is_finished for request, _ in started):
                engine.step()
                interrupts.check()
        finally:
            for request, _ in started:
                engine.abort(request)
    return [collector.completion(request) for request, collector in started]


async def _collect_async(generation: Generation) -> Completion:
    collector = _Collector(generation.num_choices)
    async for delta in generation:
        collector(delta)
    return collector.completion(generation.request)


def _listed(prompts: Prompt | Iterable[Prompt]) -> list[Prompt]:
    """One prompt, or many, as a list; a flat list of ids is one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    listed: list[Any] = list(prompts)
    return [listed] if listed and isinstance(listed[0], int) else listed


def _to_request(
    vocabulary: Vocabulary, prompt: Prompt, decoder: str | None, params: dict[str, Any]
) -> GenerationRequest:
    ids = vocabulary.encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt
    sampling = {name: value for name, value in params.items() if name in Sampling.__struct_fields__}
    others = {name: value for name, value in params.items() if name not in sampling}
    try:
        checked = msgspec.convert(sampling, Sampling)
    except msgspec.ValidationError as error:  # such as: Expected `int | null`, got `str` - at `$.max_tokens`
        reason, _, place = str(error).partition(" - at `$.")
        place = place.rstrip("`")
        raise RequestError(f"{place}: {reason}", param=place.partition("[")[0]) from None
    return GenerationRequest(prompt_token_ids=tuple(ids), sampling=checked, decoder=decoder, decoder_params=others)
