"""``POST /v1/completions``, the legacy endpoint: plain text or token ids in, one or many prompts, echo."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatserve.config import Config
from chatserve.engine.async_engine import AsyncEngine
from chatserve.engine.generation import GenerationRequest
from chatserve.server.answer_formats import answer_grammar, check_grammar
from chatserve.server.answers import Answers
from chatserve.server.bodies import CompletionBody
from chatserve.server.collecting import Choice, Collected, collect_unless_gone
from chatserve.server.completion_frames import CompletionFrames
from chatserve.server.echo import Echo, Prompt
from chatserve.server.frames import ChunkHead
from chatserve.server.generation_requests import (
    check_model,
    check_stream_options,
    completion_max_tokens,
    generation_request,
    sampling_of,
)
from chatserve.server.logprobs import LegacyLogprobs, joined
from chatserve.server.off_loop import off_loop_when_long
from chatserve.server.prompts import (
    check_prompt_ids,
    prompt_tokens,
    split_prompts,
)
from chatserve.server.responses import client_gone, json_response, response_id
from chatserve.server.streaming import stream_response, usage_mode
from chatserve.server.usage import usage_body
from chatserve.server.validation import parse, read_body
from chatserve.text import Grammar


class CompletionRoutes:
    """Legacy completions over one engine."""

    def __init__(self, engine: AsyncEngine, config: Config) -> None:
        self._engine = engine
        self._config = config

    def routes(self) -> list[Route]:
        return [Route("/v1/completions", self.create, methods=["POST"])]

    async def create(self, request: Request) -> Response:
        """Everything that can be refused is refused here, before the first byte."""
        raw = await read_body(request, self._config)
        completion_id = response_id("cmpl")
        body, prompts, wanted = await off_loop_when_long(len(raw), lambda: self._wishes(raw, completion_id))
        await check_grammar(self._engine, wanted[0].grammar)
        answers = await Answers.submit(self._engine, wanted)
        echo = Echo(prompts, answers.generations) if body.echo else None
        if body.stream:
            return self._stream(answers, body, echo, completion_id)
        return await self._whole(answers, body, echo, completion_id, request)

    def _wishes(self, raw: bytes, completion_id: str) -> tuple[CompletionBody, list[Prompt], list[GenerationRequest]]:
        """The body, its prompts, and what to ask of the engine for each of them."""
        body = parse(raw, CompletionBody)
        check_model(self._engine, body.model)
        check_stream_options(body)
        prompts = self._prompts(body)
        return body, prompts, self._requests(body, prompts, answer_grammar(body), completion_id)

    def _prompts(self, body: CompletionBody) -> list[Prompt]:
        given = split_prompts(body.prompt)
        self._engine.check_room(len(given))
        params = ["prompt"] if len(given) == 1 else [f"prompt[{index}]" for index in range(len(given))]
        return [self._prompt(prompt, param) for prompt, param in zip(given, params, strict=True)]

    def _prompt(self, given: str | list[int], param: str) -> Prompt:
        token_ids = prompt_tokens(self._engine, given, param) if isinstance(given, str) else given
        check_prompt_ids(self._engine, token_ids, param)
        text = given if isinstance(given, str) else self._engine.vocabulary.decode(given)
        return Prompt(text, tuple(token_ids))

    def _requests(
        self, body: CompletionBody, prompts: list[Prompt], grammar: Grammar | None, completion_id: str
    ) -> list[GenerationRequest]:
        sampling = sampling_of(body, max_tokens=completion_max_tokens(body), alternatives=body.logprobs)
        return [
            generation_request(
                body,
                prompt.token_ids,
                sampling,
                request_id=completion_id if len(prompts) == 1 else f"{completion_id}-{index}",
                grammar=grammar,
                prompt_logprobs=body.logprobs if body.echo else None,
            )
            for index, prompt in enumerate(prompts)
        ]

    def _builders(self, body: CompletionBody, count: int) -> list[LegacyLogprobs]:
        return [] if body.logprobs is None else [LegacyLogprobs(self._engine.vocabulary) for _ in range(count)]

    def _stream(self, answers: Answers, body: CompletionBody, echo: Echo | None, completion_id: str) -> Response:
        mode = usage_mode(body)
        head = ChunkHead(completion_id, "text_completion", int(time.time()), self._engine.info.name, mode)
        frames = CompletionFrames(head, echo=echo, logprobs=self._builders(body, answers.num_choices))
        return stream_response(answers, frames, mode, self._config)

    async def _whole(
        self, answers: Answers, body: CompletionBody, echo: Echo | None, completion_id: str, request: Request
    ) -> Response:
        created = int(time.time())
        whole = await collect_unless_gone(answers, request)
        if whole is None:
            return client_gone()
        answer: dict[str, Any] = {
            "id": completion_id,
            "object": "text_completion",
            "created": created,
            "model": self._engine.info.name,
            "choices": self._choices(whole, echo, self._builders(body, answers.num_choices)),
            "usage": usage_body(answers.usage),
        }
        if body.return_trace:
            answer["trace"] = whole.trace
        return json_response(answer)

    def _choices(self, whole: Collected, echo: Echo | None, builders: list[LegacyLogprobs]) -> list[dict[str, Any]]:
        return [
            {
                "index": index,
                "text": (echo.text(index) if echo else "") + choice.text,
                "logprobs": _lists(index, choice, echo, builders[index]) if builders else None,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(whole.choices)
        ]


def _lists(index: int, choice: Choice, echo: Echo | None, builder: LegacyLogprobs) -> dict[str, list[Any]]:
    if echo is None:
        return builder.answer(choice.tokens)
    return joined(echo.logprobs(index, builder), builder.answer(choice.tokens))
