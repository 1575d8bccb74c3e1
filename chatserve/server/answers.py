"""`Answers`: the generations of one HTTP request as one stream of deltas, with cumulative choice indices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec

from chatserve.engine.async_engine import AsyncEngine, Generation
from chatserve.engine.generation import Delta, GenerationRequest, Usage


class Answers:
    """Accepted generations, one for each prompt. Whoever holds it must `cancel` it when it is no longer read."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self.generations = generations

    @classmethod
    async def submit(cls, engine: AsyncEngine, requests: Sequence[GenerationRequest]) -> Answers:
        """Submit all requests or none (see `AsyncEngine.submit_all`)."""
        return cls(await engine.submit_all(requests))

    @property
    def num_choices(self) -> int:
        return sum(generation.num_choices for generation in self.generations)

    @property
    def usage(self) -> Usage:
        """Token counts so far, over all prompts."""
        usages = [generation.usage for generation in self.generations]
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            cached_tokens=sum(usage.cached_tokens for usage in usages),
            computed_tokens=sum(usage.computed_tokens for usage in usages),
        )

    def cancel(self) -> None:
        """Stop whatever still runs; the blocks come back at once. May be called again."""
        for generation in self.generations:
            generation.cancel()

    def __aiter__(self) -> AsyncIterator[Delta]:
        if len(self.generations) == 1:
            return self.generations[0].__aiter__()
        return self._merged()

    async def _merged(self) -> AsyncIterator[Delta]:
        """Deltas of all generations in order of arrival. The first failure ends the whole."""
        arrived: asyncio.Queue[Delta | BaseException | None] = asyncio.Queue()
        readers, first_choice = [], 0
        for generation in self.generations:
            readers.append(asyncio.create_task(_read(generation, first_choice, arrived)))
            first_choice += generation.num_choices
        try:
            num_open = len(readers)
            while num_open:
                news = await arrived.get()
                if news is None:
                    num_open -= 1
                elif isinstance(news, BaseException):
                    raise news
                else:
                    yield news
        finally:
            for reader in readers:
                reader.cancel()


async def _read(
    generation: Generation, first_choice: int, arrived: asyncio.Queue[Delta | BaseException | None]
) -> None:
    try:
        async for delta in generation:
            arrived.put_nowait(msgspec.structs.replace(delta, choice=delta.choice + first_choice))
    except Exception as error:
        arrived.put_nowait(error)
    else:
        arrived.put_nowait(None)
