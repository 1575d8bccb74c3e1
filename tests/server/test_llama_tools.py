"""Tools of a Llama model over HTTP: a call is a JSON object without a mark, and not every JSON object is a call."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from chatserve.text.chat_template import ChatTemplate
from tests.server.harness import Served, events, fake_servers
from tests.server.test_tools import CLOCK, TOOLS, WEATHER

TEMPLATE = ChatTemplate(
    '{%- if tools is not none %}{{ \'Respond as {"name": function, "parameters": dictionary}.\' + tools | tojson }}'
    "{%- endif %}{%- for message in messages %}{{ message.role + ': ' + message.content }}\n{% endfor %}assistant:"
)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["age"],
    "additionalProperties": False,
}
FORMATS = [{"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}, {"type": "json_object"}]
STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
ARGUMENTS = '{"city": "Paris", "days": 2}'


@pytest.fixture(scope="module")
def start() -> Iterator[Any]:
    with fake_servers() as start:
        yield lambda answer: start(answer, chat_template=TEMPLATE)


def answer_of(served: Served, *, stream: bool, **fields: Any) -> tuple[str, list[tuple[str, str]], str]:
    """Content, calls and the reason of the end."""
    response = served.chat(tools=fields.pop("tools", TOOLS), stream=stream, **fields)
    if not stream:
        [choice] = response.json()["choices"]
        functions = [call["function"] for call in choice["message"].get("tool_calls", ())]
        calls = [(function["name"], function["arguments"]) for function in functions]
        return choice["message"]["content"] or "", calls, choice["finish_reason"]
    choices = [chunk["choices"][0] for chunk in events(response.content)]
    content = "".join(choice["delta"].get("content", "") for choice in choices)
    pieces = [call["function"] for choice in choices for call in choice["delta"].get("tool_calls", ())]
    names = [piece["name"] for piece in pieces if "name" in piece]
    assert len(names) <= 1
    arguments = "".join(piece["arguments"] for piece in pieces)
    return content, [(name, arguments) for name in names], choices[-1]["finish_reason"]


@pytest.mark.parametrize("text", ['{"age": 30}', '{ "age": 30 }', '{\n  "age": 30\n}', '{"name": "Alice", "age": 30}'])
def test_an_object_that_is_no_call(start: Any, text: str) -> None:
    served = start(text)
    for response_format, stream in itertools.product([None, *FORMATS], [False, True]):
        assert answer_of(served, stream=stream, response_format=response_format) == (text, [], "stop")


def test_a_call(start: Any) -> None:
    served = start(f'{{"name": "weather", "parameters": {ARGUMENTS}}}')
    for response_format, stream in itertools.product([None, *FORMATS], [False, True]):
        answer = answer_of(served, stream=stream, response_format=response_format)
        assert answer == ("", [("weather", ARGUMENTS)], "tool_calls")


def test_a_function_that_was_not_offered(start: Any) -> None:
    text = '{"name": "moon", "parameters": {"phase": 1}}'
    served = start(text)
    for stream in (False, True):
        assert answer_of(served, stream=stream) == (text, [], "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_strict_functions_get_what_they_declare(start: Any, stream: bool) -> None:
    """The model wants to call with a city that is not allowed; it is led to one that is."""
    served = start('{"name": "weather", "parameters": {"city": "Praha", "days": 2}}')
    for tool, is_allowed in ((WEATHER, False), (STRICT, True)):
        _, [(name, arguments)], _ = answer_of(served, stream=stream, tools=[tool, CLOCK], max_tokens=200)
        assert name == "weather"
        assert (json.loads(arguments)["city"] in ("Paris", "Rome")) is is_allowed


@pytest.mark.parametrize("text", ["It rains.", '{"age": 30}', "{x | x > 0}"])
def test_other_answers_beside_strict_functions(start: Any, text: str) -> None:
    assert answer_of(start(text), stream=False, tools=[STRICT]) == (text, [], "stop")
