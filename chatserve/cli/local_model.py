"""`LocalModel`: an engine in this process, driven one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from chatserve.cli.loading import load_engine
from chatserve.cli.wishes import Wishes
from chatserve.config import Config
from chatserve.errors import RequestError

if TYPE_CHECKING:
    from chatserve.engine.generation import Delta, GenerationRequest, Usage


class LocalModel:
    """Loads the model and runs requests on it. Its event loop turns only while a request runs.

    Ctrl-C during a request cancels it, releases what it held and raises KeyboardInterrupt.

    Raises:
        ModelLoadError: the model cannot be loaded.
    """

    def __init__(self, config: Config) -> None:
        self._engine = load_engine(config)
        self._loop = asyncio.Runner()

    @property
    def name(self) -> str:
        return self._engine.info.name

    def decoder_names(self) -> list[str]:
        return [info.name for info in self._engine.list_decoders() if info.state == "ready"]

    def chat_prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation; raises RequestError when the model has no chat template."""
        template = self._engine.chat_template
        if template is None:
            raise RequestError(f"{self.name} has no chat template; use `chatserve generate --raw`")
        return self._engine.vocabulary.encode(template.render(messages), add_special_tokens=False)

    def text_prompt(self, text: str) -> list[int]:
        """Token ids of plain text, with the begin token where the model has one."""
        return self._engine.vocabulary.encode(text, add_special_tokens=True)

    def answer(self, messages: list[dict[str, str]], wishes: Wishes, show: Callable[[str], None]) -> None:
        """Answer a conversation; `show` gets the text as it comes."""
        self.generate(self.chat_prompt(messages), wishes, lambda delta: show(delta.text))

    def generate(self, prompt: list[int], wishes: Wishes, take: Callable[[Delta], None]) -> Usage:
        """Run one request over a prompt of token ids; `take` gets each delta as it comes."""
        return self._loop.run(self._generate(_request(prompt, wishes), take))

    def close(self) -> None:
        self._loop.run(self._engine.shutdown(0))
        self._loop.close()

    async def _generate(self, request: GenerationRequest, take: Callable[[Delta], None]) -> Usage:
        generation = await self._engine.submit(request)
        try:
            async for delta in generation:
                take(delta)
        finally:
            generation.cancel()
        return generation.usage


def _request(prompt: list[int], wishes: Wishes) -> GenerationRequest:
    from chatserve.decoding import Sampling
    from chatserve.engine.generation import GenerationRequest

    sampling: dict[str, Any] = dict(wishes.sampling)
    return GenerationRequest(
        prompt_token_ids=tuple(prompt),
        sampling=Sampling(**sampling),
        decoder=wishes.decoder,
        decoder_params=wishes.decoder_params,
    )
