"""``POST /v1/responses``: the stateless part of OpenAI's newer API, over the same engine as chat completions."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatserve.config import Config
from chatserve.engine.async_engine import AsyncEngine
from chatserve.errors import ChatserveError, RequestError
from chatserve.server import sse
from chatserve.server.answers import Answers
from chatserve.server.chat import ChatWish
from chatserve.server.collecting import unless_gone
from chatserve.server.errors import failure_of
from chatserve.server.generation_requests import check_stream_options
from chatserve.server.off_loop import off_loop_when_long
from chatserve.server.prefixes import num_bytes_of_chat
from chatserve.server.responses import client_gone, json_response, response_id
from chatserve.server.responses_bodies import ResponsesBody, chat_body, in_terms_of_responses
from chatserve.server.responses_events import ResponseEvents
from chatserve.server.tools import tool_use
from chatserve.server.validation import check_tables, parse, read_body

_log = logging.getLogger("chatserve.server")


class ResponsesRoutes:
    """Responses over one engine."""

    def __init__(self, engine: AsyncEngine, config: Config) -> None:
        self._engine = engine
        self._config = config

    def routes(self) -> list[Route]:
        return [Route("/v1/responses", self.create, methods=["POST"])]

    async def create(self, request: Request) -> Response:
        """Everything that can be refused is refused here, before the first byte."""
        raw = await read_body(request, self._config)
        body, wish = await off_loop_when_long(num_bytes_of_chat(self._engine, raw), lambda: self._wish(raw))
        try:
            answers = await wish.submit(self._engine)
        except RequestError as error:
            raise in_terms_of_responses(error) from None
        events = self._events_of(body, wish)
        if body.stream:
            keepalive = None if self._config.keepalive == "off" else sse.comment("keep-alive")
            return sse.EventStream(
                _frames(answers, events),
                on_close=answers.cancel,
                keepalive=keepalive,
                interval=self._config.keepalive_interval,
            )
        is_whole = await unless_gone(answers, request, _collect(answers, events))
        return client_gone() if is_whole is None else json_response(events.response)

    def _wish(self, raw: bytes) -> tuple[ResponsesBody, ChatWish]:
        body = parse(raw, ResponsesBody)
        try:
            check_stream_options(body)
            chat = chat_body(body)
            check_tables(chat)
            tools = tool_use(chat, self._engine.chat_template, self._engine.vocabulary)
            return body, ChatWish.of(self._engine, chat, response_id("resp"), tools)
        except RequestError as error:
            raise in_terms_of_responses(error) from None

    def _events_of(self, body: ResponsesBody, wish: ChatWish) -> ResponseEvents:
        parser = wish.tools.parser() if wish.tools is not None else None
        vocabulary = self._engine.vocabulary if wish.body.logprobs else None
        return ResponseEvents(wish.wanted.request_id, self._engine.info.name, body, parser, vocabulary)


async def _collect(answers: Answers, events: ResponseEvents) -> bool:
    async for delta in answers:
        events.delta(delta)
    events.closing(answers.usage)
    return True


async def _frames(answers: Answers, events: ResponseEvents) -> AsyncIterator[bytes]:
    try:
        yield events.opening()
        async for delta in answers:
            if frames := events.delta(delta):
                yield frames
        yield events.closing(answers.usage)
    except Exception as error:
        if not isinstance(error, ChatserveError):
            _log.exception("a stream broke")
        yield events.failed(failure_of(error))
