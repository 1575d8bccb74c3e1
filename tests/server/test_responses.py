"""``/v1/responses`` through the real openai client and event by event."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai.types.responses import ToolParam

from chatserve.errors import GenerationError
from tests.server.harness import ARGUMENTS, CALL, Served, eventually, serve_fake

Start = Callable[..., Served]

TOOLS: list[ToolParam] = [
    {
        "type": "function",
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": False,
    }
]
SIZE = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["size"],
    "additionalProperties": False,
}


def respond(served: Served, **fields: Any) -> Any:
    return served.http.post("/v1/responses", json={"input": "Hi", **fields})


def named_events(stream: bytes) -> list[tuple[str, dict[str, Any]]]:
    """A strict reading: each event is a name and one line of JSON that repeats it; numbers count up from 0."""
    found = []
    for number, event in enumerate(stream.decode().split("\n\n")[:-1]):
        name, data = event.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}"
        assert body["sequence_number"] == number
        found.append((body["type"].removeprefix("response."), body))
    return found


def test_a_whole_response(served: Served) -> None:
    answer = served.openai.responses.create(model="fake", input="Hi", metadata={"a": "b"})
    assert answer.output_text == "Hello!"
    assert answer.status == "completed"
    assert answer.model == "fake"
    assert answer.metadata == {"a": "b"}
    assert answer.error is None
    assert answer.incomplete_details is None
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (20, 7, 27)
    assert [item.type for item in answer.output] == ["message"]


def test_a_streamed_response(served: Served) -> None:
    events = list(served.openai.responses.create(model="fake", input="Hi", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == "Hello!"
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "Hello!"
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == 7


def test_the_clients_stream_helper(served: Served) -> None:
    with served.openai.responses.stream(model="fake", input="Hi") as stream:
        final = stream.get_final_response()
    assert final.output_text == "Hello!"


def test_the_order_of_events(served: Served) -> None:
    response = respond(served, stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = named_events(response.content)
    names = [name for name, _ in events if name != "output_text.delta"]
    assert names == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert events[0][1]["response"]["status"] == "in_progress"
    assert events[0][1]["response"]["output"] == []
    bodies = dict(events)
    assert bodies["output_item.added"]["item"]["content"] == []
    assert bodies["content_part.added"]["part"]["text"] == ""
    assert bodies["output_text.done"]["text"] == "Hello!"
    assert bodies["output_item.done"]["item"]["status"] == "completed"
    assert len({body["item_id"] for _, body in events if "item_id" in body}) == 1


def test_a_stream_says_what_a_whole_response_says(calling: Served) -> None:
    def without_ids(response: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in response.items() if not name.endswith(("_at", "id"))}
        kept["output"] = [{name: v for name, v in item.items() if not name.endswith("id")} for item in kept["output"]]
        return kept

    whole = respond(calling, tools=TOOLS).json()
    streamed = named_events(respond(calling, tools=TOOLS, stream=True).content)[-1][1]["response"]
    for response in (whole, streamed):
        response["usage"]["input_tokens_details"] = None  # the second one finds the first one's blocks
    assert without_ids(whole) == without_ids(streamed)


def test_calls(calling: Served) -> None:
    answer = calling.openai.responses.create(model="fake", input="Weather?", tools=TOOLS)
    message, *calls = answer.output
    assert message.type == "message"
    assert answer.output_text == "Let me see. "
    assert [(call.type == "function_call" and (call.name, call.arguments)) for call in calls] == [
        ("weather", ARGUMENTS)
    ] * 2
    assert len({call.call_id for call in calls if call.type == "function_call"}) == 2


def test_events_of_calls(calling: Served) -> None:
    events = named_events(respond(calling, tools=TOOLS, stream=True).content)
    names = [name for name, _ in events if not name.endswith("delta")]
    assert names[2:7] == [
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert names[7:] == ["output_item.added", "function_call_arguments.done", "output_item.done"] * 2 + ["completed"]
    assert [body["output_index"] for name, body in events if name == "output_item.added"] == [0, 1, 2]
    pieces = [body["delta"] for name, body in events if name == "function_call_arguments.delta"]
    assert "".join(pieces) == ARGUMENTS * 2
    assert len(pieces) > 8


def test_a_forced_call(random_model: Served) -> None:
    choice: dict[str, Any] = {"type": "function", "name": "weather"}
    answer = respond(random_model, tools=TOOLS, tool_choice=choice, seed=1, max_output_tokens=600).json()
    [call] = answer["output"]
    assert call["type"] == "function_call"
    assert json.loads(call["arguments"])["city"] in ("Paris", "Rome")


def test_json_of_a_schema(random_model: Served) -> None:
    form = {"format": {"type": "json_schema", "name": "size", "schema": SIZE}}
    answer = respond(random_model, text=form, seed=2, max_output_tokens=600).json()
    assert 0 <= json.loads(answer["output"][0]["content"][0]["text"])["size"] <= 9


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_off(served: Served, stream: bool) -> None:
    response = respond(served, max_output_tokens=3, stream=stream)
    if stream:
        name, body = named_events(response.content)[-1]
        assert name == "incomplete"
        answer = body["response"]
    else:
        answer = response.json()
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][0]["status"] == "incomplete"
    assert answer["output"][0]["content"][0]["text"] == "Hel"


def test_an_empty_answer_is_an_empty_message(start_server: Start) -> None:
    [item] = respond(start_server("")).json()["output"]
    assert item["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]


def test_logprobs(served: Served) -> None:
    given = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    part = respond(served, **given).json()["output"][0]["content"][0]
    assert "".join(item["token"] for item in part["logprobs"][:6]) == "Hello!"
    assert all(len(item["top_logprobs"]) == 2 for item in part["logprobs"])


LOGPROBS: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 1, "temperature": 0}


@pytest.fixture(scope="module")
def speaking() -> Iterator[Served]:
    """Says characters of several tokens, and a broken one at the end."""
    with serve_fake("Hallo 🦙 wélt DEF".encode() + b"\xf0") as running:
        yield running


@pytest.mark.parametrize(
    "fields", [{}, {"stop": ["DEX"]}, {"stop": ["wé"]}, {"stop": ["t DEF"]}, {"max_tokens": 8}, {"decoder": "beam"}]
)
def test_log_probabilities_of_all_tokens(speaking: Served, fields: dict[str, Any]) -> None:
    """Those of the chat's answer, the end token's among them; a stream brings the same."""
    chat = speaking.chat(temperature=0, logprobs=True, top_logprobs=1, **fields).json()["choices"][0]
    expected = [(item["token"], item["bytes"]) for item in chat["logprobs"]["content"]]
    part = respond(speaking, **LOGPROBS, **fields).json()["output"][0]["content"][0]
    assert part["text"] == chat["message"]["content"]
    assert [(item["token"], item["bytes"]) for item in part["logprobs"]] == expected
    events = named_events(respond(speaking, **LOGPROBS, **fields, stream=True).content)
    streamed = [item for name, body in events if name == "output_text.delta" for item in body["logprobs"]]
    assert streamed == part["logprobs"]
    assert next(body["logprobs"] for name, body in events if name == "output_text.done") == part["logprobs"]


@pytest.mark.parametrize("decoder", ["greedy", "beam"])
def test_log_probabilities_beside_calls_are_those_of_the_text(start_server: Start, decoder: str) -> None:
    served = start_server(f"Lét <me> {CALL}\n{CALL} and 🦙")
    answer = respond(served, **LOGPROBS, tools=TOOLS, decoder=decoder).json()
    texts = [item["content"][0] for item in answer["output"] if item["type"] == "message"]
    assert [text["text"] for text in texts] == ["Lét <me> ", " and 🦙"]
    for text in texts:
        assert b"".join(bytes(item["bytes"]) for item in text["logprobs"]) == text["text"].encode()


def test_a_conversation(served: Served) -> None:
    """The same prompt as in a chat request, however it is written."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Paris?"},
        {
            "role": "assistant",
            "content": "Hm.",
            "tool_calls": [{"id": "1", "function": {"name": "weather", "arguments": ARGUMENTS}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
    ]
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Paris?"}]},
        {"type": "reasoning", "summary": []},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hm.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "1", "name": "weather", "arguments": ARGUMENTS},
        {"type": "function_call_output", "call_id": "1", "output": "rain"},
    ]
    chat = served.http.post("/v1/chat/completions", json={"messages": messages, "cache_salt": "a"}).json()
    answer = respond(served, instructions="Be brief.", input=items, cache_salt="b").json()
    assert answer["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    again = respond(served, instructions="Be brief.", input=items, cache_salt="a").json()
    assert again["usage"]["input_tokens_details"]["cached_tokens"] > 0, "token for token the chat's prompt"


def test_a_failure_in_the_middle(start_server: Start) -> None:
    served = start_server("Hello!", delay=0.02)
    served.runner._raise_at = {3: GenerationError("broken")}
    name, body = named_events(respond(served, stream=True).content)[-1]
    assert name == "failed"
    assert body["response"]["status"] == "failed"
    assert body["response"]["error"]["message"]
    served.runner._raise_at = {served.runner.num_forwards + 2: GenerationError("broken")}
    assert respond(served).status_code == 500
    assert eventually(served.is_idle)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away(start_server: Start, stream: bool) -> None:
    served = start_server("x" * 3000, delay=0.01)
    connection = served.connect("/v1/responses", {"input": "Hi", "stream": stream})
    assert eventually(lambda: served.stat("requests_running") == 1)
    connection.close()
    assert eventually(served.is_idle)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "call_id": "1"}]}, "input[0].name"),
        ({"input": [{"type": "function_call_output", "call_id": "1"}]}, "input[0].output"),
        ({"input": [{"type": "reasoning"}]}, "input"),
        ({"metadata": {"b": "x", "a": 1}}, "metadata.a"),
        ({"metadata": 1}, "metadata"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"decoder_parms": {"width": 2}}, "decoder_parms"),
        ({"model": "other"}, "model"),
        ({"n": 2}, "n"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10_000}, "input"),
        ({"temperature": -1}, "temperature"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {"enum": []}}}}, "text.format.schema"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_what_is_refused(served: Served, fields: dict[str, Any], param: str) -> None:
    response = respond(served, **fields)
    assert response.status_code == (404 if param == "model" else 400), response.text
    assert response.json()["error"]["param"] == param
    assert "messages" not in response.json()["error"]["message"]
