"""``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatserve.config import Config
from chatserve.engine.async_engine import AsyncEngine
from chatserve.errors import RequestError
from chatserve.server.bodies import DetokenizeBody, TokenizeBody
from chatserve.server.generation_requests import check_model
from chatserve.server.off_loop import off_loop_when_long
from chatserve.server.prompts import chat_prompt, check_ids_in_vocabulary, prompt_tokens
from chatserve.server.responses import json_response
from chatserve.server.validation import parse, read_body


class TokenRoutes:
    """Tokenising as the completion endpoints do it."""

    def __init__(self, engine: AsyncEngine, config: Config) -> None:
        self._engine = engine
        self._config = config

    def routes(self) -> list[Route]:
        return [
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
        ]

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a prompt or of messages under the chat template."""
        raw = await read_body(request, self._config)
        token_ids = await off_loop_when_long(len(raw), lambda: self._token_ids(parse(raw, TokenizeBody)))
        limit = self._engine.info.max_model_len
        return json_response({"count": len(token_ids), "max_model_len": limit, "tokens": token_ids})

    def _token_ids(self, body: TokenizeBody) -> list[int]:
        check_model(self._engine, body.model)
        if (body.prompt is None) == (body.messages is None):
            raise RequestError("Give either prompt or messages.", param="prompt", code="invalid_value")
        if body.messages is not None:
            with_answer = body.add_generation_prompt is not False
            return chat_prompt(self._engine, body.messages, add_generation_prompt=with_answer)
        has_special = body.add_special_tokens is not False
        return prompt_tokens(self._engine, body.prompt or "", "prompt", add_special_tokens=has_special)

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        raw = await read_body(request, self._config)
        text = await off_loop_when_long(len(raw), lambda: self._text(parse(raw, DetokenizeBody)))
        return json_response({"prompt": text})

    def _text(self, body: DetokenizeBody) -> str:
        check_model(self._engine, body.model)
        check_ids_in_vocabulary(self._engine, body.tokens, "tokens")
        return self._engine.vocabulary.decode(body.tokens)
