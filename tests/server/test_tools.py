"""Tools over HTTP, with the openai client: offered, called, forced, and answered."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from openai.types.chat import ChatCompletionToolParam

from tests.server.harness import ARGUMENTS, CALL, HI, Served, events

Start = Callable[..., Served]

WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK: ChatCompletionToolParam = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]


def test_calls_in_a_whole_answer(calling: Served) -> None:
    answer = calling.openai.chat.completions.create(model="fake", messages=HI, tools=TOOLS)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see. "
    calls = choice.message.tool_calls or []
    assert len({call.id for call in calls}) == 2
    for call in calls:
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) == ("weather", ARGUMENTS)


def test_calls_in_a_stream(calling: Served) -> None:
    """The index and id come first, with the name; then pieces of the arguments (the client's helper joins them)."""
    with calling.openai.chat.completions.stream(model="fake", messages=HI, tools=TOOLS) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].finish_reason == "tool_calls"
    calls = final.choices[0].message.tool_calls or []
    assert [(call.function.name, call.function.arguments) for call in calls] == [("weather", ARGUMENTS)] * 2


def test_the_chunks_of_a_stream(calling: Served) -> None:
    chunks = events(calling.chat(tools=TOOLS, stream=True).content)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert choices[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["tool_calls"]
    found = [choice["delta"]["tool_calls"] for choice in choices if "tool_calls" in choice["delta"]]
    assert all(len(calls) == 1 for calls in found)
    begins = [calls[0] for calls in found if "id" in calls[0]]
    assert [(call["index"], call["type"], call["function"]) for call in begins] == [
        (index, "function", {"name": "weather", "arguments": ""}) for index in range(2)
    ]
    pieces = [calls[0] for calls in found if "id" not in calls[0]]
    assert all(set(piece) == {"index", "function"} and set(piece["function"]) == {"arguments"} for piece in pieces)
    assert len(pieces) > 4, "arguments are streamed, not sent at the end"
    content = "".join(choice["delta"].get("content", "") for choice in choices)
    assert content == "Let me see. "


def test_strict_functions_get_what_they_declare(start_server: Start) -> None:
    """The model wants to call with a city that is not allowed; it is led to one that is."""
    wrong = CALL.replace("Paris", "Praha")
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    served = start_server("Hm. " + wrong)
    given = {"max_tokens": 200, "parallel_tool_calls": False}
    [choice] = served.chat(tools=[WEATHER], **given).json()["choices"]
    assert "Praha" in choice["message"]["tool_calls"][0]["function"]["arguments"]
    message = served.chat(tools=[strict], **given).json()["choices"][0]["message"]
    assert message["content"] == "Hm. "
    assert message["tool_calls"][0]["function"]["arguments"].startswith('{"city": "Paris"')


def test_one_call_at_most(calling: Served) -> None:
    message = calling.chat(tools=TOOLS, parallel_tool_calls=False).json()["choices"][0]["message"]
    assert len(message["tool_calls"]) == 1


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_tools_the_text_is_just_text(calling: Served, fields: dict[str, Any]) -> None:
    [choice] = calling.chat(**fields).json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == f"Let me see. {CALL}\n{CALL}"
    assert "tool_calls" not in choice["message"]


def test_logprobs_of_a_stream_with_calls(calling: Served) -> None:
    chunks = events(calling.chat(tools=TOOLS, stream=True, logprobs=True).content)
    items = [item for c in chunks for item in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert bytes(byte for item in items for byte in item["bytes"]).decode() == f"Let me see. {CALL}\n{CALL}"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("tool_choice", "names"),
    [
        ("required", {"weather", "clock"}),
        ({"type": "function", "function": {"name": "weather"}}, {"weather"}),
        ({"type": "function", "function": {"name": "clock"}}, {"clock"}),
    ],
)
def test_forced_calls_obey_their_schema(random_model: Served, tool_choice: Any, names: set[str], stream: bool) -> None:
    for seed in range(3):
        given = {"seed": seed, "max_tokens": 600, "temperature": 0.3, "tools": TOOLS, "tool_choice": tool_choice}
        response = random_model.chat(**given, parallel_tool_calls=False, stream=stream)
        if stream:
            chunks = events(response.content)
            deltas = [call for c in chunks for call in c["choices"][0]["delta"].get("tool_calls", ())]
            name, reason = deltas[0]["function"]["name"], chunks[-1]["choices"][0]["finish_reason"]
            arguments = "".join(call["function"]["arguments"] for call in deltas)
        else:
            [choice] = response.json()["choices"]
            [call] = choice["message"]["tool_calls"]
            name, arguments, reason = call["function"]["name"], call["function"]["arguments"], choice["finish_reason"]
            assert choice["message"]["content"] is None
        assert reason == "tool_calls"
        assert name in names
        value = json.loads(arguments)
        if name == "weather":
            assert value["city"] in ("Paris", "Rome")
            assert 1 <= value["days"] <= 7


def test_a_forced_call_that_is_cut_off_says_so(random_model: Served) -> None:
    [choice] = random_model.chat(tools=TOOLS, tool_choice="required", max_tokens=50).json()["choices"]
    assert choice["finish_reason"] == "length"


def test_either_json_or_a_call(random_model: Served) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1, 2]}}}
    kinds = set()
    for seed in range(8):
        given = {"tools": TOOLS, "seed": seed, "max_tokens": 600, "temperature": 0.5}
        [choice] = random_model.chat(response_format=schema, **given).json()["choices"]
        kinds.add(choice["finish_reason"])
        if choice["finish_reason"] == "stop":
            assert json.loads(choice["message"]["content"]) in (1, 2)
    assert "stop" in kinds


def test_a_conversation_with_results(start_server: Start) -> None:
    """What comes back from a call is shown to the model, beside the description of the tools."""
    served = start_server("It rains.")
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
    messages = [
        {"role": "user", "content": "Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    answer = served.http.post("/v1/chat/completions", json={"messages": messages, "tools": TOOLS})
    [choice] = answer.json()["choices"]
    assert choice["message"]["content"] == "It rains."
    assert choice["finish_reason"] == "stop"
    with_results = answer.json()["usage"]["prompt_tokens"]
    plain = served.chat(tools=TOOLS).json()["usage"]["prompt_tokens"]
    assert with_results > plain + len(ARGUMENTS) + len("rain")


def test_arguments_that_are_not_json_are_shown_as_they_were(start_server: Start) -> None:
    served = start_server("Hm.")
    call = {"function": {"name": "weather", "arguments": "{nonsense"}}
    messages = [*HI, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "error"}]
    assert served.http.post("/v1/chat/completions", json={"messages": messages}).status_code == 200
