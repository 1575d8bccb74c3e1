"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatserve.config import Config
from chatserve.engine.async_engine import AsyncEngine
from chatserve.errors import RequestError
from chatserve.server.answer_formats import answer_grammar, check_grammar
from chatserve.server.answers import Answers
from chatserve.server.bodies import ChatBody
from chatserve.server.collecting import Choice, Collected, collect_unless_gone
from chatserve.server.frames import ChatFrames, ChunkHead
from chatserve.server.generation_requests import (
    chat_alternatives,
    chat_max_tokens,
    check_model,
    check_stream_options,
    generation_request,
    sampling_of,
)
from chatserve.server.logprobs import chat_logprobs
from chatserve.server.prefixes import continued_chat
from chatserve.server.prompts import check_prompt_ids
from chatserve.server.responses import client_gone, json_response, response_id
from chatserve.server.streaming import stream_response, usage_mode
from chatserve.server.usage import usage_body
from chatserve.server.validation import parse, read_body


async def accept_chat(engine: AsyncEngine, body: ChatBody, request_id: str) -> Answers:
    """The generation that a checked body asks for, submitted. Raises whatever can be refused."""
    check_model(engine, body.model)
    alternatives = chat_alternatives(body)
    sampling = sampling_of(body, max_tokens=chat_max_tokens(body), alternatives=alternatives)
    token_ids = await continued_chat(engine, body)
    check_prompt_ids(engine, token_ids, "messages")
    grammar = answer_grammar(body)
    await check_grammar(engine, grammar)
    wanted = generation_request(body, token_ids, sampling, request_id=request_id, grammar=grammar)
    try:
        return await Answers.submit(engine, [wanted])
    except RequestError as error:
        if error.param == "prompt":  # a chat request has no such field
            error.param = "messages"
        raise


class ChatRoutes:
    """Chat completions over one engine."""

    def __init__(self, engine: AsyncEngine, config: Config) -> None:
        self._engine = engine
        self._config = config

    def routes(self) -> list[Route]:
        return [Route("/v1/chat/completions", self.create, methods=["POST"])]

    async def create(self, request: Request) -> Response:
        """Everything that can be refused is refused here, before the first byte."""
        body = parse(await read_body(request, self._config.max_body_bytes), ChatBody)
        check_stream_options(body)
        chat_id = response_id("chatcmpl")
        answers = await accept_chat(self._engine, body, chat_id)
        if body.stream:
            return self._stream(answers, body, chat_id)
        return await self._whole(answers, body, chat_id, request)

    def _stream(self, answers: Answers, body: ChatBody, chat_id: str) -> Response:
        mode = usage_mode(body)
        head = ChunkHead(chat_id, "chat.completion.chunk", int(time.time()), self._engine.info.name, mode)
        frames = ChatFrames(head, self._engine.vocabulary, has_logprobs=bool(body.logprobs))
        return stream_response(answers, frames, mode, self._config)

    async def _whole(self, answers: Answers, body: ChatBody, chat_id: str, request: Request) -> Response:
        created = int(time.time())
        whole = await collect_unless_gone(answers, request)
        if whole is None:
            return client_gone()
        answer: dict[str, Any] = {
            "id": chat_id,
            "object": "chat.completion",
            "created": created,
            "model": self._engine.info.name,
            "choices": self._choices(whole, bool(body.logprobs)),
            "usage": usage_body(answers.usage),
        }
        if body.return_trace:
            answer["trace"] = whole.trace
        return json_response(answer)

    def _choices(self, whole: Collected, has_logprobs: bool) -> list[dict[str, Any]]:
        return [self._choice(index, choice, has_logprobs) for index, choice in enumerate(whole.choices)]

    def _choice(self, index: int, choice: Choice, has_logprobs: bool) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": chat_logprobs(choice.tokens, self._engine.vocabulary) if has_logprobs else None,
            "finish_reason": choice.finish_reason,
        }
