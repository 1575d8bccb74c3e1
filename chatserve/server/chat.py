"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatserve.config import Config
from chatserve.engine.async_engine import AsyncEngine
from chatserve.engine.generation import GenerationRequest
from chatserve.errors import RequestError
from chatserve.server.answer_formats import answer_grammar, check_grammar
from chatserve.server.answers import Answers
from chatserve.server.bodies import ChatBody
from chatserve.server.collecting import Choice, collect_unless_gone
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
from chatserve.server.off_loop import off_loop_when_long
from chatserve.server.prefixes import continued_chat, num_bytes_of_chat
from chatserve.server.prompts import check_prompt_ids
from chatserve.server.responses import client_gone, json_response, response_id
from chatserve.server.streaming import stream_response, usage_mode
from chatserve.server.tool_frames import ToolFrames, finish_reason_with_calls, message_with_calls
from chatserve.server.tools import ToolUse, tool_use
from chatserve.server.usage import usage_body
from chatserve.server.validation import parse, read_body
from chatserve.text.tool_parser import Content


@dataclass(frozen=True, slots=True)
class ChatWish:
    """A checked body with the generation that it asks for.

    Attributes:
        tools: what the answers may call; None: they are not read for calls.
    """

    body: ChatBody
    tools: ToolUse | None
    wanted: GenerationRequest

    @classmethod
    def of(cls, engine: AsyncEngine, body: ChatBody, request_id: str, tools: ToolUse | None = None) -> ChatWish:
        """Takes as long as the body is: call it off the event loop for long ones. Raises RequestError."""
        return cls(body, tools, _wanted(engine, body, request_id, tools))

    async def submit(self, engine: AsyncEngine) -> Answers:
        """Let the engine begin. Raises whatever can still be refused."""
        await check_grammar(engine, self.wanted.grammar)
        try:
            return await Answers.submit(engine, [self.wanted])
        except RequestError as error:
            if error.param == "prompt":  # a chat request has no such field
                error.param = "messages"
            raise


def _wanted(engine: AsyncEngine, body: ChatBody, request_id: str, tools: ToolUse | None) -> GenerationRequest:
    check_model(engine, body.model)
    alternatives = chat_alternatives(body)
    sampling = sampling_of(body, max_tokens=chat_max_tokens(body), alternatives=alternatives)
    engine.check_room()
    token_ids = continued_chat(engine, body, tools.shown if tools else ())
    check_prompt_ids(engine, token_ids, "messages")
    grammar, shown = answer_grammar(body), frozenset[int]()
    if tools is not None:
        grammar, shown = tools.grammar(grammar), tools.shown_token_ids
    return generation_request(body, token_ids, sampling, request_id=request_id, grammar=grammar, shown_token_ids=shown)


class ChatRoutes:
    """Chat completions over one engine."""

    def __init__(self, engine: AsyncEngine, config: Config) -> None:
        self._engine = engine
        self._config = config

    def routes(self) -> list[Route]:
        return [Route("/v1/chat/completions", self.create, methods=["POST"])]

    async def create(self, request: Request) -> Response:
        """Everything that can be refused is refused here, before the first byte."""
        raw = await read_body(request, self._config)
        wish = await off_loop_when_long(num_bytes_of_chat(self._engine, raw), lambda: self._wish(raw))
        answers = await wish.submit(self._engine)
        if wish.body.stream:
            return self._stream(answers, wish)
        return await self._whole(answers, wish, request)

    def _wish(self, raw: bytes) -> ChatWish:
        body = parse(raw, ChatBody)
        check_stream_options(body)
        tools = tool_use(body, self._engine.chat_template, self._engine.vocabulary)
        return ChatWish.of(self._engine, body, response_id("chatcmpl"), tools)

    def _stream(self, answers: Answers, wish: ChatWish) -> Response:
        body, tools = wish.body, wish.tools
        mode = usage_mode(body)
        head = ChunkHead(
            wish.wanted.request_id, "chat.completion.chunk", int(time.time()), self._engine.info.name, mode
        )
        vocabulary, has_logprobs = self._engine.vocabulary, bool(body.logprobs)
        if tools is None:
            frames = ChatFrames(head, vocabulary, has_logprobs=has_logprobs)
        else:
            parsers = [tools.parser() for _ in range(answers.num_choices)]
            frames = ToolFrames(head, vocabulary, parsers, has_logprobs=has_logprobs)
        return stream_response(answers, frames, mode, self._config)

    async def _whole(self, answers: Answers, wish: ChatWish, request: Request) -> Response:
        has_logprobs = bool(wish.body.logprobs)
        created = int(time.time())
        whole = await collect_unless_gone(answers, request)
        if whole is None:
            return client_gone()
        answer: dict[str, Any] = {
            "id": wish.wanted.request_id,
            "object": "chat.completion",
            "created": created,
            "model": self._engine.info.name,
            "choices": [
                self._choice(index, choice, has_logprobs, wish.tools) for index, choice in enumerate(whole.choices)
            ],
            "usage": usage_body(answers.usage),
        }
        if wish.body.return_trace:
            answer["trace"] = whole.trace
        return json_response(answer)

    def _choice(self, index: int, choice: Choice, has_logprobs: bool, tools: ToolUse | None) -> dict[str, Any]:
        parser = tools.parser() if tools is not None else None
        pieces = [*parser.push(choice.text), *parser.finish()] if parser is not None else [Content(choice.text)]
        num_calls = parser.num_calls if parser is not None else 0
        return {
            "index": index,
            "message": message_with_calls(pieces),
            "logprobs": chat_logprobs(choice.tokens, self._engine.vocabulary) if has_logprobs else None,
            "finish_reason": finish_reason_with_calls(choice.finish_reason or "stop", num_calls),
        }
