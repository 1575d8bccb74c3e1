"""Tools of a Mistral model over HTTP: its markers are special tokens, its templates want ids of nine characters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from chatserve.testing import END_TOKEN_ID, RandomLogits, byte_vocabulary
from chatserve.text.chat_template import ChatTemplate
from tests.server.harness import HI, Served, events, fake_servers
from tests.server.test_tools import CLOCK, TOOLS, WEATHER

VOCABULARY = byte_vocabulary(specials=("<|end|>", "<|start|>", "[TOOL_CALLS]", "[ARGS]"))
ARGUMENTS = '{"city": "Paris", "days": 2}'

_TEMPLATE = """
{%- for message in messages %}
    {%- if message.role == "user" %}
        {%- if tools is not none and loop.last %}
            {{- "[AVAILABLE_TOOLS]" + tools | tojson + "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST]" + message.content + "[/INST]" }}
    {%- elif message.tool_calls is defined %}
        {%- for call in message.tool_calls %}
            {%- if call.id is not defined or call.id | length != 9 %}
                {{- raise_exception("ids must have length 9") }}
            {%- endif %}
            {{- CALL }}
        {%- endfor %}
        {{- "<|end|>" }}
    {%- elif message.role == "tool" %}
        {%- if message.tool_call_id is not defined or message.tool_call_id | length != 9 %}
            {{- raise_exception("ids must have length 9") }}
        {%- endif %}
        {{- "[TOOL_RESULTS]" + message.tool_call_id + message.content + "[/TOOL_RESULTS]" }}
    {%- else %}
        {{- message.content + "<|end|>" }}
    {%- endif %}
{%- endfor %}"""
_CALLS = {
    "list": '"[TOOL_CALLS] [" + call.function | tojson + "]"',
    "named": '"[TOOL_CALLS]" + call.function.name + "[ARGS]" + call.function.arguments | tojson',
}


def template(form: str) -> ChatTemplate:
    return ChatTemplate(_TEMPLATE.replace("CALL }}", f"{_CALLS[form]} }}}}"))


def calls(form: str, *arguments: str) -> list[int]:
    """Tokens of calls of the function weather."""
    if form == "list":
        objects = ", ".join(f'{{"name": "weather", "arguments": {given}}}' for given in arguments)
        return VOCABULARY.encode(f"[TOOL_CALLS] [{objects}]")
    return VOCABULARY.encode("".join(f"[TOOL_CALLS]weather[ARGS]{given}" for given in arguments))


StartForm = Callable[[str, Any], Served]


@pytest.fixture(scope="module")
def start_form() -> Iterator[StartForm]:
    """Starts the server of a model that writes calls in this form, with this answer or these logits."""
    with fake_servers() as start:
        yield lambda form, answer: start(answer, vocabulary=VOCABULARY, chat_template=template(form))


@pytest.fixture(scope="module", params=["list", "named"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def talking(form: str, start_form: StartForm) -> Served:
    """Says something and calls a function twice."""
    return start_form(form, [*b"Let me see. ", *calls(form, ARGUMENTS, ARGUMENTS)])


@pytest.fixture(scope="module")
def anything(form: str, start_form: StartForm) -> Served:
    """Says anything: what it obeys, a grammar has made it obey."""
    return start_form(form, RandomLogits(VOCABULARY.size, end_token_ids=(END_TOKEN_ID,), end_bias=4.0))


def test_calls_in_a_whole_answer(talking: Served) -> None:
    answer = talking.openai.chat.completions.create(model="fake", messages=HI, tools=TOOLS)
    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see. ")
    found = choice.message.tool_calls or []
    assert [call.function.arguments for call in found if call.type == "function"] == [ARGUMENTS] * 2
    assert all(len(call.id) == 9 and call.id.isalnum() and call.id.isascii() for call in found)
    assert found[0].id != found[1].id


def test_calls_in_a_stream(talking: Served) -> None:
    with talking.openai.chat.completions.stream(model="fake", messages=HI, tools=TOOLS, logprobs=True) as stream:
        final = stream.get_final_completion()
    [choice] = final.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see. "
    found = choice.message.tool_calls or []
    assert [(call.function.name, call.function.arguments) for call in found] == [("weather", ARGUMENTS)] * 2
    chunks = events(talking.chat(tools=TOOLS, stream=True).content)
    deltas = [chunk["choices"][0]["delta"].get("tool_calls") for chunk in chunks]
    assert sum(delta is not None for delta in deltas) > 8, "arguments are streamed, not sent at the end"


def test_log_probabilities_tell_of_the_marker(talking: Served) -> None:
    [choice] = talking.chat(tools=TOOLS, logprobs=True).json()["choices"]
    shown = [item["token"] for item in choice["logprobs"]["content"]]
    assert "[TOOL_CALLS]" in shown
    marker = choice["logprobs"]["content"][shown.index("[TOOL_CALLS]")]
    assert bytes(marker["bytes"]) == b"[TOOL_CALLS]"


def test_one_call_when_there_may_be_only_one(talking: Served) -> None:
    [choice] = talking.chat(tools=TOOLS, parallel_tool_calls=False).json()["choices"]
    assert len(choice["message"]["tool_calls"]) == 1


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_tools_the_markers_stay_hidden(talking: Served, fields: dict[str, Any]) -> None:
    [choice] = talking.chat(**fields).json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"].startswith("Let me see. ")
    assert "[TOOL_CALLS]" not in choice["message"]["content"]


def test_calls_in_responses(talking: Served) -> None:
    tool = {"type": "function", **WEATHER["function"]}
    answer = talking.openai.responses.create(model="fake", input="Hi", tools=[tool])  # type: ignore[list-item]
    message, *found = answer.output
    assert message.type == "message"
    assert [call.arguments for call in found if call.type == "function_call"] == [ARGUMENTS] * 2
    assert all(len(call.call_id) == 9 for call in found if call.type == "function_call")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("names", [["weather", "clock"], ["weather"], ["clock"]])
def test_forced_calls_obey_their_schema(anything: Served, names: list[str], stream: bool) -> None:
    choice: Any = "required" if len(names) > 1 else {"type": "function", "function": {"name": names[0]}}
    for seed in range(3):
        given = {"seed": seed, "max_tokens": 600, "temperature": 0.3, "tools": TOOLS, "tool_choice": choice}
        response = anything.chat(**given, stream=stream)
        found, reason = _streamed(events(response.content)) if stream else _whole(response.json())
        assert reason == "tool_calls"
        assert found
        for name, arguments in found:
            assert name in names
            value = json.loads(arguments)
            if name == "weather":
                assert value["city"] in ("Paris", "Rome")
                assert 1 <= value["days"] <= 7


def _whole(answer: Any) -> tuple[list[tuple[str, str]], str]:
    [choice] = answer["choices"]
    assert choice["message"]["content"] is None
    functions = [call["function"] for call in choice["message"]["tool_calls"]]
    return [(function["name"], function["arguments"]) for function in functions], choice["finish_reason"]


def _streamed(chunks: Sequence[Any]) -> tuple[list[tuple[str, str]], str]:
    found: list[tuple[str, str]] = []
    for chunk in chunks:
        for call in chunk["choices"][0]["delta"].get("tool_calls", ()):
            if "name" in call["function"]:
                found.append((call["function"]["name"], ""))
            name, arguments = found[call["index"]]
            found[call["index"]] = (name, arguments + call["function"]["arguments"])
    return found, chunks[-1]["choices"][0]["finish_reason"]


def test_strict_functions_get_what_they_declare(form: str, start_form: StartForm) -> None:
    """The model wants to call with a city that is not allowed; it is led to one that is."""
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    served = start_form(form, [*b"Hm. ", *calls(form, ARGUMENTS.replace("Paris", "Praha"))])
    given = {"max_tokens": 200, "parallel_tool_calls": False}
    for tool, is_allowed in ((WEATHER, False), (strict, True)):
        [choice] = served.chat(tools=[tool, CLOCK], **given).json()["choices"]
        [call] = choice["message"]["tool_calls"]
        assert choice["message"]["content"] == "Hm. "
        assert (json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")) is is_allowed


@pytest.mark.parametrize("call_id", ["aB3dE6gH9", "call_0123456789abcdef"])
def test_calls_and_results_go_back_to_the_model(talking: Served, call_id: str) -> None:
    """With the ids made here, and with those of other servers."""
    call = {"id": call_id, "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": "rain"},
    ]
    answer = talking.http.post("/v1/chat/completions", json={"messages": messages, "tools": TOOLS})
    assert answer.status_code == 200, answer.text


def test_a_missing_id_is_refused_in_the_words_of_the_template(talking: Served) -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
    messages = [*HI, {"role": "assistant", "content": None, "tool_calls": [call]}]
    answer = talking.http.post("/v1/chat/completions", json={"messages": messages})
    assert answer.status_code == 400
    assert "ids must have length 9" in answer.json()["error"]["message"]
