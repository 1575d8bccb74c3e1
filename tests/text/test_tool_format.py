"""How calls are written, shown and demanded: grammars agree with what the parser reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from chatserve.testing import VOCAB_SIZE, byte_vocabulary
from chatserve.text import Grammar
from chatserve.text.chat_template import ChatTemplate
from chatserve.text.grammar_state import GrammarState
from chatserve.text.tool_format import (
    BARE,
    MISTRAL,
    MISTRAL_LIST,
    MISTRAL_WITH_ID,
    TAGGED,
    ToolFormat,
    has_short_ids,
    tool_format,
    with_short_ids,
    with_tools_told,
)
from chatserve.text.tool_parser import CallArguments, CallBegin, Content

VOCABULARY = byte_vocabulary()
CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTIONS = [("weather", {**CITY, "$defs": {"city": {"enum": ["Paris", "Rome"]}}}), ("time", None)]
NAMES = {"weather", "time"}
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
    parser = form.parser(NAMES)
    pieces = parser.push(form.call("weather", PARIS)) + parser.finish()
    assert pieces == [CallBegin(0, "weather"), CallArguments(0, PARIS)]


AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
ANSWERS = [
    {**AGE, "additionalProperties": False},
    {"$ref": "#/$defs/city", "$defs": {"city": AGE}},  # a function has another city
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$ref": "#/definitions/person",
        "definitions": {
            "person": {**AGE, "properties": {"age": {"$ref": "#/definitions/age"}}},
            "age": {"type": "integer"},
        },
    },
]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("has_several", [False, True])
def test_a_bare_call_or_another_object(answer: dict[str, Any], has_several: bool) -> None:
    """However many characters the answer shares with a call, and whatever its references mean."""
    grammar = BARE.calls_grammar(FUNCTIONS, has_several=has_several, otherwise=answer)
    for right in ('{"age": 30}', '{ "age":30 }', '{\n  "age": 30\n}'):
        assert accepts(grammar, right)
    for call in (BARE.call("weather", PARIS), f'{{"name":"weather",\n"parameters":{PARIS}}}', BARE.call("time", "{}")):
        assert accepts(grammar, call)
    assert accepts(grammar, f'{{"type": "function", "name": "weather", "parameters": {PARIS}}}')
    for wrong in ('{"age": "x"}', "30", "text", ""):
        assert not accepts(grammar, wrong)


def test_a_bare_call_or_any_object() -> None:
    grammar = BARE.calls_grammar(FUNCTIONS, has_several=False, otherwise={"type": "object"})
    for right in ("{}", '{"name": "Alice", "age": 30}', '{"name": "weather"}', BARE.call("weather", PARIS)):
        assert accepts(grammar, right)
    assert not accepts(grammar, "[]")


def test_a_bare_call_or_an_answer_without_a_schema_of_objects() -> None:
    for schema, right in (({"type": "integer"}, "17"), (True, "[1]"), (True, "{}"), (True, '"name"')):
        grammar = BARE.calls_grammar(FUNCTIONS, has_several=False, otherwise=schema)
        assert accepts(grammar, right)
        assert accepts(grammar, BARE.call("weather", PARIS))


def test_another_answer_beside_tags_may_be_anything() -> None:
    grammar = TAGGED.calls_grammar(FUNCTIONS, has_several=False, otherwise=True)
    assert accepts(grammar, '{"name": "weather"}')
    assert accepts(grammar, TAGGED.call("weather", PARIS))
    assert not accepts(grammar, TAGGED.call("weather", "{}"))


OTHER_TEXTS = [
    *("", " ", " Hello", "{x | x > 0} is a set", "\n{{ template }}", '{"age": 30} is it.', "{ }"),
    *('{"name": "Alice", "age": 30}', '{"name": "weather"}', '{"parameters": {"city": "London"}}'),
    *('{"n\\u0061me": "weather", "parameters": {}}', 'I write {"name": "weather", "parameters": {}}'),
]


@pytest.mark.parametrize("text", OTHER_TEXTS)
def test_text_beside_strict_bare_calls(text: str) -> None:
    """What the grammar lets through beside calls the parser takes for content."""
    assert accepts(BARE.text_or_calls_grammar(FUNCTIONS), text)
    parser = BARE.parser(NAMES)
    pieces = parser.push(text) + parser.finish()
    assert "".join(piece.text for piece in pieces if isinstance(piece, Content)) == text


def test_strict_bare_calls() -> None:
    grammar = BARE.text_or_calls_grammar(FUNCTIONS)
    for right in (BARE.call("weather", PARIS), f"\n{BARE.call('time', '{}')}\n", f"{BARE.call('weather', PARIS)} So."):
        assert accepts(grammar, right)
    for wrong in (
        *(BARE.call("weather", "{}"), BARE.call("other", "{}"), '{ "name": "weather", "parameters": {"city": 1}}'),
        *('{"name": "weather", "arguments": {}}', '{"arguments": {}, "name": "weather"}'),
        *('{"parameters": {}, "name": "weather"}', '{"a": 1, "name": "weather", "parameters": {}}'),
    ):
        assert not accepts(grammar, wrong)
        assert not accepts(grammar, f" {wrong}")


@pytest.mark.parametrize("form", [TAGGED, BARE])
def test_many_functions(form: ToolFormat) -> None:
    """The limits of grammars leave room for them."""
    schema = {"type": "object", "properties": {f"parameter_{index}": {"type": "string"} for index in range(8)}}
    functions = [(f"function_{index}", schema) for index in range(40)]
    call = form.call("function_39", '{"parameter_7": "x"}')
    assert accepts(form.text_or_calls_grammar(functions), call)
    assert accepts(form.calls_grammar(functions, has_several=True, otherwise={"type": "object"}), call)


def test_every_call_behind_an_opening_is_taken() -> None:
    parser = TAGGED.parser(NAMES)
    assert parser.push(TAGGED.call("other", "{}")) == [CallBegin(0, "other"), CallArguments(0, "{}")]


MARKERS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
MARKED = byte_vocabulary(specials=("<|end|>", "<|start|>", *MARKERS), size=261)


def ids_of(text: str) -> list[int]:
    """Bytes, but special tokens where their names stand."""
    return MARKED.encode(text)


def marked_accepts(source: str, token_ids: list[int]) -> bool:
    matcher = MARKED.grammars.compile(Grammar("lark", source))
    return GrammarState(matcher, MARKED.size).accepts(token_ids)


def listed(*calls: tuple[str, str]) -> str:
    return ", ".join(f'{{"name": "{name}", "arguments": {given}}}' for name, given in calls).join(("[", "]"))


def named(*calls: tuple[str, str]) -> str:
    return "[TOOL_CALLS]".join(f"{name}[ARGS]{given}" for name, given in calls)


def with_id(*calls: tuple[str, str]) -> str:
    return "[TOOL_CALLS]".join(f"{name}[CALL_ID]aB3dE6gH9[ARGS]{given}" for name, given in calls)


mistral_formats = pytest.mark.parametrize(
    ("form", "write"), [(MISTRAL_LIST, listed), (MISTRAL, named), (MISTRAL_WITH_ID, with_id)]
)


@mistral_formats
def test_forced_calls_of_mistral(form: ToolFormat, write: Callable[..., str]) -> None:
    form = form.over(MARKED)
    one, several = (form.calls_grammar(FUNCTIONS, has_several=has_several) for has_several in (False, True))
    call, clock = "[TOOL_CALLS]" + write(("weather", PARIS)), ("time", "{}")
    both = "[TOOL_CALLS]" + write(("weather", PARIS), clock)
    assert marked_accepts(one, ids_of(call))
    assert marked_accepts(several, ids_of(call))
    assert marked_accepts(several, ids_of(both))
    assert not marked_accepts(one, ids_of(both))
    for wrong in (
        *("Hello", "", "[TOOL_CALLS]", "[TOOL_CALLS]" + write(("other", "{}"))),
        *("[TOOL_CALLS]" + write(("weather", "{}")), "[TOOL_CALLS]" + write(("time", '{"anything": 1}'))),
    ):
        assert not marked_accepts(several, ids_of(wrong))
    assert not marked_accepts(several, list(call.encode())), "the marker is the token, not its name spelled"
    either = form.calls_grammar(FUNCTIONS, has_several=True, otherwise={"type": "integer"})
    assert marked_accepts(either, ids_of(both))
    assert marked_accepts(either, ids_of("17"))


@mistral_formats
def test_text_with_calls_of_mistral(form: ToolFormat, write: Callable[..., str]) -> None:
    grammar = form.over(MARKED).text_or_calls_grammar(FUNCTIONS)
    calls = "[TOOL_CALLS]" + write(("weather", PARIS), ("time", "{}"))
    for right in ("", "No call, a[0].\n[TOOL", calls, f"Let me see.\n{calls}", f"{calls} Done."):
        assert marked_accepts(grammar, ids_of(right))
    for wrong in ("[TOOL_CALLS]" + write(("weather", "{}")), "Hm. [TOOL_CALLS]" + write(("other", "{}"))):
        assert not marked_accepts(grammar, ids_of(wrong))
    assert not marked_accepts(grammar, list(b"[TOOL_CALLS]f")), "spelled, it would be read as a call as well"


@mistral_formats
def test_without_special_tokens_the_markers_are_text(form: ToolFormat, write: Callable[..., str]) -> None:
    form = form.over(VOCABULARY)
    assert not form.special
    text = "[TOOL_CALLS]" + write(("weather", PARIS))
    assert accepts(form.calls_grammar(FUNCTIONS, has_several=True), text)
    assert accepts(form.text_or_calls_grammar(FUNCTIONS), f"Hm. {text}")
    assert not accepts(form.text_or_calls_grammar(FUNCTIONS), "Hm. [TOOL_CALLS]" + write(("weather", "{}")))


def test_tags_may_be_special_tokens() -> None:
    tagged = byte_vocabulary(specials=("<|end|>", "<|start|>", "<tool_call>", "</tool_call>"))
    form = TAGGED.over(tagged)
    assert list(form.special) == ["<tool_call>", "</tool_call>"]
    call = form.call("weather", PARIS)
    for grammar in (form.calls_grammar(FUNCTIONS, has_several=True), form.text_or_calls_grammar(FUNCTIONS)):
        state = GrammarState(tagged.grammars.compile(Grammar("lark", grammar)), tagged.size)
        assert state.accepts(tagged.encode(call))
        assert not state.accepts(list(call.encode()))
        assert not state.accepts(tagged.encode(form.call("weather", "{}")))


def test_a_list_may_begin_with_a_space() -> None:
    """As the sentencepiece vocabularies write it."""
    grammar = MISTRAL_LIST.over(MARKED).calls_grammar(FUNCTIONS, has_several=False)
    assert marked_accepts(grammar, ids_of("[TOOL_CALLS] " + listed(("time", "{}"))))


def test_the_special_tokens_of_a_format() -> None:
    ids = {name: MARKED.encode(name)[0] for name in MARKERS}
    assert MISTRAL_WITH_ID.over(MARKED).special == ids
    assert MISTRAL_LIST.over(MARKED).special == {"[TOOL_CALLS]": ids["[TOOL_CALLS]"]}
    assert not TAGGED.over(MARKED).special


def test_ids_become_short_where_a_template_demands_it() -> None:
    assert has_short_ids("... [TOOL_CALLS] ...")
    assert not has_short_ids("... <tool_call> ...")
    calls = [{"id": call_id, "function": {"name": "f"}} for call_id in ("call_0123456789", "aB3dE6gH9", None)]
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "1", "tool_call_id": "call_0123456789"},
        {"role": "tool", "content": "2", "tool_call_id": "aB3dE6gH9"},
        {"role": "tool", "content": "3"},
    ]
    short = with_short_ids(turns)
    made, kept, none = short[1]["tool_calls"]
    assert (len(made["id"]), made["id"].isalnum(), made["id"].isascii()) == (9, True, True)
    assert kept == calls[1]
    assert none == {"function": {"name": "f"}}
    assert [turn.get("tool_call_id") for turn in short[2:]] == [made["id"], "aB3dE6gH9", None]
    assert turns[1]["tool_calls"][0]["id"] == "call_0123456789", "the given turns are not changed"


def test_formats_are_recognised_by_their_templates() -> None:
    assert tool_format("[AVAILABLE_TOOLS] ... <tool_call> [TOOL_CALLS] [") is MISTRAL_LIST
    assert tool_format("'[TOOL_CALLS]' + name + '[ARGS]' + arguments") is MISTRAL
    assert tool_format("'[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]'") is MISTRAL_WITH_ID
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
