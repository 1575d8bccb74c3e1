"""``/v1/prefixes``: register, list and remove named prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatserve.config import Config
from chatserve.engine.async_engine import AsyncEngine
from chatserve.engine.named_prefixes import check_prefix_name
from chatserve.errors import NotFoundError, RequestError
from chatserve.server.bodies import ChatBody, Messages
from chatserve.server.off_loop import off_loop_when_long
from chatserve.server.prompts import (
    chat_prompt,
    check_continuation,
    check_prompt_ids,
    prompt_tokens,
    render_prompt,
    template_messages,
)
from chatserve.server.responses import json_response
from chatserve.server.validation import parse, read_body

SHARED_PREFIX = "shared-prefix"
_BYTES_PER_TOKEN = 4


class PrefixBody(msgspec.Struct, kw_only=True):
    """Body of ``POST /v1/prefixes``: a name, and one of `text`, `messages` and `tokens`."""

    name: str
    text: str | None = None
    messages: Messages | None = None
    tokens: list[int] | None = None


class PrefixRoutes:
    """Named prefixes of one engine."""

    def __init__(self, engine: AsyncEngine, config: Config) -> None:
        self._engine = engine
        self._config = config

    def routes(self) -> list[Route]:
        return [
            Route("/v1/prefixes", self.register, methods=["POST"]),
            Route("/v1/prefixes", self.list_prefixes, methods=["GET"]),
            Route("/v1/prefixes/{name}", self.remove, methods=["DELETE"]),
        ]

    async def register(self, request: Request) -> Response:
        """Compute and pin a prefix; answers when it can be used."""
        raw = await read_body(request, self._config)
        name, token_ids, messages = await off_loop_when_long(len(raw), lambda: self._prefix(raw))
        await self._engine.register_prefix(name, token_ids, messages)
        return json_response(_described(name, len(token_ids)))

    async def list_prefixes(self, request: Request) -> Response:
        data = [_described(name, length) for name, length in self._engine.prefixes().items()]
        return json_response({"object": "list", "data": data})

    async def remove(self, request: Request) -> Response:
        """Unpin a prefix; answers that run on it go on. Raises NotFoundError."""
        name = request.path_params["name"]
        if name not in self._engine.prefixes():
            raise NotFoundError(f"No prefix {name[:80]!r} is registered.", param="name", code="prefix_not_found")
        self._engine.remove_prefix(name)
        return json_response({"id": name, "object": "prefix", "deleted": True})

    def _prefix(self, raw: bytes) -> tuple[str, list[int], list[dict[str, Any]] | None]:
        """Name, token ids, and what they were rendered from if they were."""
        body = parse(raw, PrefixBody)
        check_prefix_name(body.name)
        self._engine.check_room()
        token_ids = self._token_ids(body)
        return body.name, token_ids, template_messages(body.messages) if body.messages is not None else None

    def _token_ids(self, body: PrefixBody) -> list[int]:
        given = [field for field in (body.text, body.messages, body.tokens) if field is not None]
        if len(given) != 1:
            raise RequestError("Give one of text, messages and tokens.", param="text", code="invalid_value")
        if body.messages is not None:
            return chat_prompt(self._engine, body.messages, add_generation_prompt=False)
        if body.tokens is not None:
            check_prompt_ids(self._engine, body.tokens, "tokens")
            return body.tokens
        token_ids = prompt_tokens(self._engine, body.text or "", "text")
        check_prompt_ids(self._engine, token_ids, "text")
        return token_ids


def num_bytes_of_chat(engine: AsyncEngine, raw: bytes) -> int:
    """About how much there is to read and tokenise for a body: it may continue a prefix."""
    longest = max(engine.prefixes().values(), default=0)
    return len(raw) + _BYTES_PER_TOKEN * longest


def continued_chat(engine: AsyncEngine, body: ChatBody, tools: Sequence[dict[str, Any]] = ()) -> list[int]:
    """Token ids of a chat request's prompt, which shows these tools.

    Behind a prefix that was given as messages these are what continues it: the prompt is the prefix's ids and then
    these, nothing is tokenised across the seam.
    """
    name = (body.decoder_params or {}).get("prefix") if body.decoder == SHARED_PREFIX else None
    before = engine.prefix_messages(name) if isinstance(name, str) else None
    check_continuation(body)
    continues = bool(body.continue_final_message)
    whole = render_prompt(
        engine,
        (before or []) + template_messages(body.messages),
        add_generation_prompt=not continues if body.add_generation_prompt is None else body.add_generation_prompt,
        continue_final_message=continues,
        tools=tools,
    )
    if before is None:
        return whole
    prefix = render_prompt(engine, before, add_generation_prompt=False)
    if whole[: len(prefix)] != prefix:
        raise RequestError(
            f"The chat template does not render the messages as a continuation of prefix {name!r}.", param="messages"
        )
    return whole[len(prefix) :]


def _described(name: str, num_tokens: int) -> dict[str, Any]:
    return {"id": name, "object": "prefix", "tokens": num_tokens}
