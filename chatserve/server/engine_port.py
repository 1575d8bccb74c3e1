"""What the server asks of an engine. `chatserve.engine.AsyncEngine` fulfils it; the server imports no engine code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from chatserve.engine.generation import Delta, GenerationRequest, PublishedToken, Usage
from chatserve.models.runner import ModelInfo
from chatserve.text.chat_template import ChatTemplate
from chatserve.text.vocabulary import Vocabulary


class DecoderInfo(Protocol):
    """A registered decoder; `state` is "ready" or "broken", `parameters` is a JSON Schema."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def distribution(self) -> str | None: ...
    @property
    def api(self) -> int: ...
    @property
    def parameters(self) -> dict[str, Any]: ...
    @property
    def state(self) -> str: ...
    @property
    def reason(self) -> str | None: ...


class Generation(Protocol):
    """One accepted request: an asynchronous iterator of deltas that may raise GenerationError at any point."""

    @property
    def request_id(self) -> str: ...

    @property
    def num_choices(self) -> int: ...

    @property
    def usage(self) -> Usage: ...

    @property
    def prompt_logprobs(self) -> list[PublishedToken | None] | None: ...

    def __aiter__(self) -> AsyncIterator[Delta]: ...

    async def __anext__(self) -> Delta: ...

    def cancel(self) -> None: ...


class Engine(Protocol):
    """The engine as the server sees it; `status` is "starting", "ready", "draining" or "dead"."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def chat_template(self) -> ChatTemplate | None: ...

    @property
    def status(self) -> str: ...

    async def submit(self, request: GenerationRequest) -> Generation: ...

    def list_decoders(self) -> Sequence[DecoderInfo]: ...

    def stats(self) -> dict[str, float]: ...

    async def shutdown(self, grace: float) -> None: ...
