"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatserve.config import Config
from chatserve.engine.async_engine import AsyncEngine
from chatserve.engine.generation import GenerationRequest
from chatserve.errors import RequestError
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
        check_model(self._engine, body.model)
        check_stream_options(body)
        alternatives = chat_alternatives(body)
        sampling = sampling_of(body, max_tokens=chat_max_tokens(body), alternatives=alternatives)
        token_ids = await continued_chat(self._engine, body)
        check_prompt_ids(self._engine, token_ids, "messages")
        chat_id = response_id("chatcmpl")
        wanted = generation_request(body, token_ids, sampling, request_id=chat_id)
        answers = await self._submit(wanted)
        if body.stream:
            return self._stream(answers, body, chat_id)
        return await self._whole(answers, body, chat_id, request)

    async def _submit(self, wanted: GenerationRequest) -> Answers:
        """What the engine says about the prompt is told about the messages: a chat request has no prompt field."""
        try:
            return await Answers.submit(self._engine, [wanted])
        except RequestError as error:
            if error.param == "prompt":
                error.param = "messages"
            raise

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
