"""`ResponseEvents`: the events of one answer of ``/v1/responses``, and the response object that they build."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from typing import Any

import msgspec

from chatserve.engine.generation import Delta, PublishedToken, Usage
from chatserve.server.errors import Failure
from chatserve.server.frames import encode
from chatserve.server.logprobs import chat_logprobs
from chatserve.server.responses_bodies import ResponsesBody
from chatserve.server.token_places import TokenPlaces
from chatserve.server.tool_frames import call_id
from chatserve.text.tool_parser import CallArguments, CallBegin, Content, Piece, ToolCallParser
from chatserve.text.vocabulary import Vocabulary


class ResponseEvents:
    """Turns deltas into events, each numbered; call in turn `opening`, `delta`s, then `closing` or `failed`.

    Args:
        response_id: id of the response.
        model: name of the model.
        body: what was asked; the response repeats some of it.
        parser: finds calls in the text; None: there are none.
        vocabulary: for log-probabilities, when they are wanted; None: they are not.

    Attributes:
        response: the response as it stands.
    """

    def __init__(
        self,
        response_id: str,
        model: str,
        body: ResponsesBody,
        parser: ToolCallParser | None,
        vocabulary: Vocabulary | None,
    ) -> None:
        self.response = _new_response(response_id, model, body)
        self._parser = parser
        self._vocabulary = vocabulary
        self._tokens = TokenPlaces()
        self._num_characters = 0
        self._num_events = 0
        self._item: dict[str, Any] | None = None  # the output item that is being written
        self._events: list[bytes] = []

    def opening(self) -> bytes:
        """What goes out on acceptance."""
        self._add("response.created", response=self.response)
        self._add("response.in_progress", response=self.response)
        return self._taken()

    def delta(self, delta: Delta) -> bytes:
        """The events of one delta; b"" when it brings nothing to show."""
        self._tokens.add(delta.tokens)
        for piece in self._pieces(delta):
            match piece:
                case Content(text, start):
                    self._add_text(text, self._tokens.take(start, start + len(text)))
                case CallBegin(_, name):
                    self._begin_call(name)
                case CallArguments(_, text):
                    self._add_arguments(text)
        if delta.finish_reason is not None:
            if not self.response["output"]:
                self._begin_message()
            if self._is_in_message() and (rest := self._tokens.rest()):
                self._add_text("", rest)
            is_complete = delta.finish_reason != "length"
            self._end_item("completed" if is_complete else "incomplete")
            self.response["status"] = "completed" if is_complete else "incomplete"
            if not is_complete:
                self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        return self._taken()

    def closing(self, usage: Usage) -> bytes:
        """The last event: the whole response."""
        self.response["usage"] = _usage_body(usage)
        self.response["completed_at"] = int(time.time())
        self._add(f"response.{self.response['status']}", response=self.response)
        return self._taken()

    def failed(self, failure: Failure) -> bytes:
        """The last event of an answer that broke."""
        self.response["status"] = "failed"
        self.response["error"] = {"code": failure.code or failure.kind, "message": failure.message}
        self._add("response.failed", response=self.response)
        return self._taken()

    def _pieces(self, delta: Delta) -> list[Piece]:
        if self._parser is None:
            start, self._num_characters = self._num_characters, self._num_characters + len(delta.text)
            return [Content(delta.text, start)] if delta.text else []
        pieces = self._parser.push(delta.text)
        return pieces + self._parser.finish() if delta.finish_reason is not None else pieces

    def _add_text(self, text: str, tokens: Iterable[PublishedToken]) -> None:
        if not self._is_in_message():
            self._begin_message()
        assert self._item is not None
        part = self._item["content"][0]
        part["text"] += text
        logprobs = self._logprobs(tokens)
        part["logprobs"] += logprobs
        self._add("response.output_text.delta", **self._place(0), delta=text, logprobs=logprobs)

    def _is_in_message(self) -> bool:
        return self._item is not None and self._item["type"] == "message"

    def _logprobs(self, tokens: Iterable[PublishedToken]) -> list[dict[str, Any]]:
        return [] if self._vocabulary is None else list(chat_logprobs(tokens, self._vocabulary)["content"])

    def _add_arguments(self, text: str) -> None:
        assert self._item is not None
        self._item["arguments"] += text
        self._add("response.function_call_arguments.delta", **self._place(), delta=text)

    def _begin_message(self) -> None:
        self._begin_item(
            {"id": _id("msg"), "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        )
        assert self._item is not None
        self._item["content"].append({"type": "output_text", "text": "", "annotations": [], "logprobs": []})
        self._add("response.content_part.added", **self._place(0), part=self._item["content"][0])

    def _begin_call(self, name: str) -> None:
        ids = {"id": _id("fc"), "call_id": call_id()}
        self._begin_item({"type": "function_call", **ids, "name": name, "arguments": "", "status": "in_progress"})

    def _begin_item(self, item: dict[str, Any]) -> None:
        self._end_item("completed")
        self._item = item
        self.response["output"].append(item)
        self._add("response.output_item.added", output_index=self._output_index, item=item)

    def _end_item(self, status: str) -> None:
        item = self._item
        if item is None:
            return
        item["status"] = status
        if item["type"] == "message":
            part = item["content"][0]
            text = {"text": part["text"], "logprobs": part["logprobs"]}
            self._add("response.output_text.done", **self._place(0), **text)
            self._add("response.content_part.done", **self._place(0), part=part)
        else:
            call = {"name": item["name"], "arguments": item["arguments"]}
            self._add("response.function_call_arguments.done", **self._place(), **call)
        self._add("response.output_item.done", output_index=self._output_index, item=item)
        self._item = None

    @property
    def _output_index(self) -> int:
        return len(self.response["output"]) - 1

    def _place(self, content_index: int | None = None) -> dict[str, Any]:
        """Which item an event is about, and which part of it."""
        assert self._item is not None
        place = {"item_id": self._item["id"], "output_index": self._output_index}
        return place if content_index is None else {**place, "content_index": content_index}

    def _add(self, kind: str, **fields: Any) -> None:
        """Encode an event at once: what it shows will change."""
        body = encode({"type": kind, "sequence_number": self._num_events, **fields})
        self._events.append(b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n")
        self._num_events += 1

    def _taken(self) -> bytes:
        events = b"".join(self._events)
        self._events.clear()
        return events


def _new_response(response_id: str, model: str, body: ResponsesBody) -> dict[str, Any]:
    """A response in progress; fields that only repeat the request are as OpenAI sends them."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "store": False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": msgspec.to_builtins(body.text) if body.text is not None else {"format": {"type": "text"}},
        "tool_choice": msgspec.to_builtins(body.tool_choice) if body.tool_choice is not None else "auto",
        "tools": msgspec.to_builtins(body.tools or []),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def _usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
