"""How calls are written, shown and demanded: grammars agree with what the parser reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chatserve.testing import VOCAB_SIZE, byte_vocabulary
from chatserve.text import Grammar
from chatserve.text.chat_template import ChatTemplate
from chatserve.text.grammar_state import GrammarState
from chatserve.text.tool_format import BARE, TAGGED, ToolFormat, tool_format, with_tools_told
from chatserve.text.tool_parser import CallArguments, CallBegin

VOCABULARY = byte_vocabulary()
CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTIONS = [("weather", {**CITY, "$defs": {"city": {"enum": ["Paris", "Rome"]}}}), ("time", None)]
PARIS = '{"city": "Paris"}'
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]


def accepts(source: str, text: str) -> bool:
    matcher = VOCABULARY.grammars.compile(Grammar("lark", source))
    return GrammarState(matcher, VOCAB_SIZE).accepts(list(text.encode()))


@pytest.mark.parametrize("form", [TAGGED, BARE])
def test_forced_calls(form: ToolFormat) -> None:
    grammar = form.calls_grammar(FUNCTIONS, has_several=False)
    assert accepts(grammar, form.call("weather", PARIS))
    assert accepts(grammar, form.call("time", "{ }"))
    assert not accepts(grammar, form.call("time", '{"anything": [1]}'))
    assert not accepts(grammar, form.call("weather", '{"city": "London"}'))
    assert not accepts(grammar, form.call("other", "{}"))
    assert not accepts(grammar, "Hello")
    assert not accepts(grammar, "")
    assert not accepts(grammar, form.call("time", "{}") + "\n" + form.call("time", "{}"))


def test_several_calls_and_another_answer() -> None:
    calls = TAGGED.call("weather", PARIS) + "\n" + TAGGED.call("time", "{}")
    assert accepts(TAGGED.calls_grammar(FUNCTIONS, has_several=True), calls)
    grammar = TAGGED.calls_grammar(FUNCTIONS, has_several=True, otherwise={"type": "integer"})
    assert accepts(grammar, calls)
    assert accepts(grammar, "17")
    assert not accepts(grammar, "text")


def test_text_in_which_calls_are_held_to_their_schemas() -> None:
    grammar = TAGGED.text_or_calls_grammar(FUNCTIONS)
    assert accepts(grammar, "No call, a < b.\n<tool>")
    assert accepts(grammar, f"Let me see.\n{TAGGED.call('weather', PARIS)}\n{TAGGED.call('time', '{}')}\nDone.")
    assert not accepts(grammar, TAGGED.call("weather", "{}"))
    assert not accepts(grammar, TAGGED.call("other", "{}"))


@pytest.mark.parametrize("form", [TAGGED, BARE])
def test_a_written_call_is_read_again(form: ToolFormat) -> None:
    parser = form.parser()
    pieces = parser.push(form.call("weather", PARIS)) + parser.finish()
    assert pieces == [CallBegin(0, "weather"), CallArguments(0, PARIS)]


def test_formats_are_recognised_by_their_templates() -> None:
    assert tool_format("... <tool_call>{'name': ..., \"parameters\"") is TAGGED
    assert tool_format('{{ \'{"name": "\' }} ... "parameters": ... ipython') is BARE
    assert tool_format("nothing of the kind") is TAGGED


@pytest.mark.parametrize(
    ("source", "takes_tools"),
    [
        ("{% for message in messages %}{{ message.content }}{% endfor %}", False),
        ("{% if tools %}{{ tools | tojson }}{% endif %}", True),
        ("{%- if tools is not none %}{% set all = tools %}{% endif %}", True),
        ("tools", False),
        ("{% set tools = 1 %}{{ tools }}", False),
    ],
)
def test_whether_a_template_takes_tools(source: str, takes_tools: bool) -> None:
    assert ChatTemplate(source).takes_tools is takes_tools


def call_turn(content: str, *names: str) -> dict[str, Any]:
    calls = [{"id": "1", "type": "function", "function": {"name": name, "arguments": {"ä": 1}}} for name in names]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def test_a_template_without_tools_is_told_of_them() -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        call_turn("", "f", "g"),
        {"role": "tool", "content": "one", "tool_call_id": "1"},
        {"role": "tool", "content": "two"},
        call_turn("Hm.", "f"),
        {"role": "tool", "content": "three"},
    ]
    told = with_tools_told(turns, TOOLS)
    assert [turn["role"] for turn in told] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert all(set(turn) == {"role", "content"} for turn in told)
    assert told[0]["content"].startswith("Be brief.\n\n")
    assert json.dumps(TOOLS[0]["function"]) in told[0]["content"]
    assert told[2]["content"] == TAGGED.call("f", '{"ä": 1}') + "\n" + TAGGED.call("g", '{"ä": 1}')
    assert told[3]["content"].count("<tool_response>") == 2
    assert told[4]["content"] == "Hm.\n" + TAGGED.call("f", '{"ä": 1}')
    assert turns[0]["content"] == "Be brief.", "the given turns are not changed"


def test_without_a_system_message_or_tools() -> None:
    [system, user] = with_tools_told([{"role": "user", "content": "Hi"}], TOOLS)
    assert (system["role"], user["content"]) == ("system", "Hi")
    assert with_tools_told([{"role": "user", "content": "Hi"}], []) == [{"role": "user", "content": "Hi"}]
