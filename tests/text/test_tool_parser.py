"""Tool calls in a text: the same content and calls however the text is cut into pieces."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatserve.text.json_call import JsonCall
from chatserve.text.mistral_call import MistralCall
from chatserve.text.tool_parser import CallArguments, CallBegin, Content, Piece, ToolCallParser

OPEN, CLOSE = "<tool_call>", "</tool_call>"
WEATHER = '{"name": "weather", "arguments": {"city": "Paris", "days": [1, 2]}}'


def parse(text: str, *cuts: int, opening: str = OPEN, max_calls: int | None = None) -> list[Piece]:
    parser = ToolCallParser(opening, CLOSE if opening else "", max_calls=max_calls)
    bounds = [0, *sorted(cuts), len(text)]
    pieces: list[Piece] = []
    for start, stop in itertools.pairwise(bounds):
        pieces += parser.push(text[start:stop])
    return pieces + parser.finish()


def joined(pieces: list[Piece], text: str) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls of that text; checks that arguments follow the beginning of their call, and places."""
    content = ""
    calls: list[tuple[str, str]] = []
    for piece in pieces:
        if isinstance(piece, Content):
            assert piece.text
            assert text.startswith(piece.text, piece.start)
            content += piece.text
        elif isinstance(piece, CallBegin):
            assert piece.index == len(calls)
            calls.append((piece.name, ""))
        else:
            assert piece.index == len(calls) - 1
            assert piece.text
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.text)
    return content, calls


WEATHER_CALL = ("weather", '{"city": "Paris", "days": [1, 2]}')


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("just text", "just text", []),
        ("", "", []),
        ("  \n", "  \n", []),
        (f"{OPEN}\n{WEATHER}\n{CLOSE}", "", [WEATHER_CALL]),
        (f"{OPEN}{WEATHER}{CLOSE}", "", [WEATHER_CALL]),
        (f"\n\n{OPEN}\n{WEATHER}\n{CLOSE}\n", "", [WEATHER_CALL]),
        (f"Let me see.\n{OPEN}\n{WEATHER}\n{CLOSE}", "Let me see.\n", [WEATHER_CALL]),
        (f"{OPEN}\n{WEATHER}\n{CLOSE}\n{OPEN}\n{WEATHER}\n{CLOSE}", "", [WEATHER_CALL] * 2),
        (f"{OPEN}{WEATHER}{CLOSE} and so", " and so", [WEATHER_CALL]),
        (f"{OPEN}{WEATHER}", "", [WEATHER_CALL]),
        (f"{OPEN}{WEATHER} without closing", "without closing", [WEATHER_CALL]),
        (f'{OPEN}{{"arguments": {{"a": 1}}, "name": "f"}}{CLOSE}', "", [("f", '{"a": 1}')]),
        (f'{OPEN}{{"name": "f", "parameters": {{"a": "}}"}}, "id": null}}{CLOSE}', "", [("f", '{"a": "}"}')]),
        (f'{OPEN}{{"name": "f", "arguments": "{{\\"a\\": 1}}"}}{CLOSE}', "", [("f", '{"a": 1}')]),
        (f'{OPEN}{{"name": "f"}}{CLOSE}', "", [("f", "{}")]),
        (f'{OPEN}{{"name": "f", "arguments": {{}}}}{CLOSE}', "", [("f", "{}")]),
        (f'{OPEN}{{"name": "f", "arguments": {{"a": 1', "", [("f", '{"a": 1')]),
        (f"{OPEN} is how calls begin", f"{OPEN} is how calls begin", []),
        (f"{OPEN}{{}}{CLOSE}", f"{OPEN}{{}}{CLOSE}", []),
        (f"\n {OPEN}[1]", f"\n {OPEN}[1]", []),
        (f'{OPEN}{{"name": 5}}{CLOSE}', f'{OPEN}{{"name": 5}}{CLOSE}', []),
        (f'{OPEN}{{"name": }}', f'{OPEN}{{"name": }}', []),
        (f'{OPEN}{{"na', f'{OPEN}{{"na', []),
        (f"{OPEN}[1]{OPEN}{WEATHER}{CLOSE}", f"{OPEN}[1]", [WEATHER_CALL]),
        ("<tool", "<tool", []),
        ("a < b, <<tool_call", "a < b, <<tool_call", []),
    ],
)
def test_what_is_found(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert joined(parse(text), text) == (content, calls)
    assert joined(parse(text, *range(1, len(text))), text) == (content, calls)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (WEATHER, "", [WEATHER_CALL]),
        (f"\n{WEATHER}\n", "", [WEATHER_CALL]),
        ('{"city": "Paris"}', '{"city": "Paris"}', []),
        ("Hello {there}", "Hello {there}", []),
        (f"{WEATHER}\n\nThen text", "\n\nThen text", [WEATHER_CALL]),
        (f"{WEATHER}\u2028Then text", "\u2028Then text", [WEATHER_CALL]),
        (f"Look: {WEATHER}", f"Look: {WEATHER}", []),
    ],
)
def test_a_call_that_is_the_whole_answer(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert joined(parse(text, opening=""), text) == (content, calls)
    assert joined(parse(text, *range(1, len(text)), opening=""), text) == (content, calls)


def parse_bare(text: str, *cuts: int) -> tuple[str, list[tuple[str, str]]]:
    """With a reader that knows the functions."""
    parser = ToolCallParser("", "", reader=lambda: JsonCall({"weather", "clock"}))
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [piece for start, stop in itertools.pairwise(bounds) for piece in parser.push(text[start:stop])]
    return joined(pieces + parser.finish(), text)


@pytest.mark.parametrize(
    "text",
    [
        *('{"name": "Alice", "age": 30}', '{"name": "Alice", "parameters": {}}', ' {"name": "weather"} and so'),
        *('{"name": "weather", "days": 1}\n', '{"parameters": {"a": 1}, "name": "Alice"}', '{"parameters": {"a": 1}}'),
        *('{"arguments": "{}", "name": 5}', '{"name": "weather", "parameters": }', '{"name": "weather", "argu'),
        *('{"name": "weather", "description": "Of a city.", "parameters": {}}', '{"a": 1, "name": "weather"}'),
        *('{"name": "wea', '{"n\\u0061me": "weather", "parameters": {}}', '[{"name": "weather", "parameters": {}}]'),
    ],
)
def test_objects_that_call_no_known_function_are_content(text: str) -> None:
    assert parse_bare(text) == (text, [])
    assert parse_bare(text, *range(1, len(text))) == (text, [])


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (WEATHER, [WEATHER_CALL]),
        ('{"type": "function", "name": "clock", "parameters": {}}', [("clock", "{}")]),
        ('{"parameters": {"a": 1}, "name": "clock"}', [("clock", '{"a": 1}')]),
        ('{"parameters": "{\\"a\\": 1}", "name": "clock"}', [("clock", '{"a": 1}')]),
        ('{"name": "clock", "arguments": {"a": ', [("clock", '{"a": ')]),
        ('{"id": "1", "name": "clock", "arguments": {}, "more": null}', [("clock", "{}")]),
    ],
)
def test_objects_that_call_a_known_function(text: str, calls: list[tuple[str, str]]) -> None:
    assert parse_bare(text) == ("", calls)
    assert parse_bare(text, *range(1, len(text))) == ("", calls)


def test_what_cannot_be_a_call_is_passed_on_at_once() -> None:
    parser = ToolCallParser("", "", reader=lambda: JsonCall({"weather"}))
    assert parser.push('{"name": "Alice') == []
    assert parser.push('", ') == [Content('{"name": "Alice", ')]
    assert parser.push('"age": 30}') == [Content('"age": 30}', 18)]
    parser = ToolCallParser("", "", reader=lambda: JsonCall({"weather"}))
    assert parser.push('{"age"') == [Content('{"age"')]
    assert parser.push(": 30") == [Content(": 30", 6)]


MISTRAL_OPEN = "[TOOL_CALLS]"


def parse_mistral(text: str, *cuts: int, max_calls: int | None = None) -> tuple[str, list[tuple[str, str]]]:
    parser = ToolCallParser(MISTRAL_OPEN, "", reader=MistralCall, max_calls=max_calls)
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [piece for start, stop in itertools.pairwise(bounds) for piece in parser.push(text[start:stop])]
    return joined(pieces + parser.finish(), text)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("just text", "just text", []),
        (f"{MISTRAL_OPEN}[{WEATHER}]", "", [WEATHER_CALL]),
        (f"{MISTRAL_OPEN} [{WEATHER}, {WEATHER}]", "", [WEATHER_CALL] * 2),
        (f"{MISTRAL_OPEN}\n[ {WEATHER} ,\n{WEATHER}\n]\n", "", [WEATHER_CALL] * 2),
        (f"Let me see.{MISTRAL_OPEN}[{WEATHER}]", "Let me see.", [WEATHER_CALL]),
        (f"{MISTRAL_OPEN}[{WEATHER}] and so", " and so", [WEATHER_CALL]),
        (f"{MISTRAL_OPEN}[{WEATHER}]{MISTRAL_OPEN}[{WEATHER}]", "", [WEATHER_CALL] * 2),
        (f"{MISTRAL_OPEN}[{WEATHER}", "", [WEATHER_CALL]),
        (f"{MISTRAL_OPEN}[{WEATHER}, ", "", [WEATHER_CALL]),
        (f"{MISTRAL_OPEN}[{WEATHER}\nThen text", "Then text", [WEATHER_CALL]),
        (f"{MISTRAL_OPEN}[{WEATHER}, 5]", "5]", [WEATHER_CALL]),
        (f"{MISTRAL_OPEN}[{WEATHER},]", "", [WEATHER_CALL]),
        (f"{MISTRAL_OPEN}[{WEATHER} , {WEATHER} ,\n] and so", " and so", [WEATHER_CALL] * 2),
        (f'{MISTRAL_OPEN}[{{"name": "f", "id": "aB3dE6gH9"}}]', "", [("f", "{}")]),
        (f"{MISTRAL_OPEN}{WEATHER}", "", [WEATHER_CALL]),
        (f'{MISTRAL_OPEN}f[ARGS]{{"a": "}}"}}', "", [("f", '{"a": "}"}')]),
        (f"{MISTRAL_OPEN} f-1.x_y[ARGS] {{}}", "", [("f-1.x_y", "{}")]),
        (f'{MISTRAL_OPEN}f[CALL_ID]aB3dE6gH9[ARGS]{{"a": 1}}', "", [("f", '{"a": 1}')]),
        (f"{MISTRAL_OPEN}f{{}}", "", [("f", "{}")]),
        (f"Hm. {MISTRAL_OPEN}f[ARGS]{{}}{MISTRAL_OPEN}g[ARGS]{{}} and so", "Hm.  and so", [("f", "{}"), ("g", "{}")]),
        (f'{MISTRAL_OPEN}f[ARGS]{{"a": 1', "", [("f", '{"a": 1')]),
        (f"{MISTRAL_OPEN}f[ARGS]5", f"{MISTRAL_OPEN}f[ARGS]5", []),
        (f"{MISTRAL_OPEN}[ARGS]{{}}", f"{MISTRAL_OPEN}[ARGS]{{}}", []),
        (f"{MISTRAL_OPEN}f[ARGS]", f"{MISTRAL_OPEN}f[ARGS]", []),
        (f"{MISTRAL_OPEN} is how calls begin", f"{MISTRAL_OPEN} is how calls begin", []),
        (f"{MISTRAL_OPEN}[1]{MISTRAL_OPEN}[{WEATHER}]", f"{MISTRAL_OPEN}[1]", [WEATHER_CALL]),
        (f"{MISTRAL_OPEN}{'f' * 200}{{}}", f"{MISTRAL_OPEN}{'f' * 200}{{}}", []),
        (MISTRAL_OPEN, MISTRAL_OPEN, []),
    ],
)
def test_calls_of_mistral(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert parse_mistral(text) == (content, calls)
    assert parse_mistral(text, *range(1, len(text))) == (content, calls)


def test_further_calls_of_a_list_can_be_dropped() -> None:
    """Also one that is cut off anywhere."""
    first = f"Hm. {MISTRAL_OPEN}[{WEATHER}"
    rest = f", {WEATHER}] the end"
    for length in range(len(rest) + 1):
        text = first + rest[:length]
        assert parse_mistral(text, max_calls=1) == ("Hm. ", [WEATHER_CALL])
        assert parse_mistral(text, *range(1, len(text)), max_calls=1) == ("Hm. ", [WEATHER_CALL])


def test_arguments_of_mistral_are_passed_on_as_they_come() -> None:
    parser = ToolCallParser(MISTRAL_OPEN, "", reader=MistralCall)
    assert parser.push(f"{MISTRAL_OPEN}f[AR") == []
    assert parser.push("GS]") == []
    assert parser.push('{"a') == [CallBegin(0, "f"), CallArguments(0, '{"a')]
    assert parser.push('": 1}') == [CallArguments(0, '": 1}')]
    assert parser.push(f'{MISTRAL_OPEN}[{{"name": "g", "arguments": {{"b": 2') == [
        CallBegin(1, "g"),
        CallArguments(1, '{"b": 2'),
    ]
    assert parser.push('}}, {"name": "h"}') == [CallArguments(1, "}"), CallBegin(2, "h"), CallArguments(2, "{}")]
    assert parser.push("]") == []
    assert parser.finish() == []


def test_further_calls_can_be_dropped() -> None:
    text = f"Hm. {OPEN}{WEATHER}{CLOSE}\n{OPEN}{WEATHER}{CLOSE} the end"
    assert joined(parse(text, max_calls=1), text) == ("Hm. ", [WEATHER_CALL])


def test_arguments_are_passed_on_as_they_come() -> None:
    parser = ToolCallParser(OPEN, CLOSE)
    assert parser.push(f'{OPEN}\n{{"name": "f') == []
    assert parser.push('", "argum') == [CallBegin(0, "f")]
    assert parser.push('ents": {"a') == [CallArguments(0, '{"a')]
    assert parser.push('": 1}') == [CallArguments(0, '": 1}')]
    assert parser.push(f"}}\n{CLOSE}") == []
    assert parser.finish() == []


members = st.tuples(
    st.sampled_from(["name", "arguments", "parameters", "id"]),
    st.sampled_from(['"f"', '"g"', "{}", '{"a": 1}', '"{\\"b\\": 2}"', "null", "[1]"]),
)


@given(st.lists(members, max_size=6), st.sampled_from([None, {"f"}]))
def test_of_what_is_given_twice_the_first_counts(given: list[tuple[str, str]], functions: set[str] | None) -> None:
    """The right answer by `json`, which keeps the last of equal keys."""
    text = "{" + ", ".join(f'"{key}": {value}' for key, value in given) + "}"
    reader = JsonCall(functions)
    pieces = ToolCallParser("", "", reader=lambda: reader)
    content, calls = joined([*pieces.push(text), *pieces.finish()], text)
    first = json.loads("{" + ", ".join(f'"{key}": {value}' for key, value in reversed(given)) + "}")
    first_arguments = next((json.loads(value) for key, value in given if key in ("arguments", "parameters")), None)
    has_arguments = any(key in ("arguments", "parameters") for key, _ in given)
    name = first.get("name")
    is_call = isinstance(name, str) and (functions is None or (name in functions and has_arguments))
    if not is_call:
        assert (content, calls) == (text, [])
        return
    if isinstance(first_arguments, str):
        first_arguments = _decoded(first_arguments)
    [(found, written)] = calls
    assert (content, found) == ("", name)
    assert _decoded(written) == (first_arguments if has_arguments else {})


def _decoded(text: str) -> Any:
    """JSON, or the text itself where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
values = st.recursive(st.none() | st.booleans() | st.integers() | names, lambda inner: st.lists(inner, max_size=3))
arguments = st.dictionaries(names, values, max_size=3)
plain = st.text('abc <>/{}"\n', max_size=12)


@given(st.lists(st.tuples(names, arguments), max_size=3), plain, st.lists(st.integers(0, 400), max_size=8))
def test_any_calls_cut_anywhere(calls: list[tuple[str, dict[str, Any]]], before: str, cuts: list[int]) -> None:
    text = before + "".join(
        f"{OPEN}\n{json.dumps({'name': name, 'arguments': given}, ensure_ascii=False)}\n{CLOSE}"
        for name, given in calls
    )
    content, found = joined(parse(text, *(min(cut, len(text)) for cut in cuts)), text)
    assert [(name, json.loads(given)) for name, given in found] == calls
    assert content == (before if before.strip() or not calls else "")


@given(st.text('{}[]":,\\ nameargumts<tool_cal>/1', max_size=80), st.lists(st.integers(0, 80), max_size=5))
def test_nonsense_is_not_lost_and_cuts_do_not_matter(text: str, cuts: list[int]) -> None:
    text = OPEN + text
    whole = joined(parse(text), text)
    assert joined(parse(text, *(min(cut, len(text)) for cut in cuts)), text) == whole
    if not whole[1]:
        assert whole[0] == text


plain_names = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True)


@given(
    st.lists(st.tuples(plain_names, arguments), max_size=3),
    st.text('abc [TOL_S{}"\n', max_size=12),
    st.sampled_from(["list", "named", "with id"]),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_any_calls_of_mistral_cut_anywhere(
    calls: list[tuple[str, dict[str, Any]]], before: str, form: str, cuts: list[int]
) -> None:
    texts = [(name, json.dumps(given, ensure_ascii=False)) for name, given in calls]
    if form == "list":
        objects = ", ".join(f'{{"name": "{name}", "arguments": {text}}}' for name, text in texts)
        text = f"{MISTRAL_OPEN} [{objects}]" if calls else ""
    else:
        between = "[CALL_ID]aB3dE6gH9[ARGS]" if form == "with id" else "[ARGS]"
        text = "".join(f"{MISTRAL_OPEN}{name}{between}{text}" for name, text in texts)
    content, found = parse_mistral(before + text, *cuts)
    assert [(name, json.loads(given)) for name, given in found] == calls
    assert content == (before if before.strip() or not calls else "")


mistral_fragments = st.sampled_from(
    [
        *(MISTRAL_OPEN, "[ARGS]", "[CALL_ID]", "f", "[", "]", ", ", "{", "}", "{}", WEATHER, '{"name": "f"}'),
        *('"arguments": 1', '"', "\\", " ", "\n", "text ", "é🦙", "[TOOL", "5"),
    ]
)


@given(
    st.lists(mistral_fragments, max_size=12).map("".join),
    st.lists(st.integers(0, 200), max_size=8),
    st.sampled_from([None, 1, 2]),
)
def test_cuts_do_not_matter_to_mistral(text: str, cuts: list[int], max_calls: int | None) -> None:
    text = MISTRAL_OPEN + text
    whole = parse_mistral(text, max_calls=max_calls)
    assert parse_mistral(text, *cuts, max_calls=max_calls) == whole
    assert parse_mistral(text, *range(1, len(text)), max_calls=max_calls) == whole
    if not whole[1]:
        assert whole[0] == text


fragments = st.sampled_from(
    [
        *(OPEN, CLOSE, WEATHER, '{"name": "f"}', "<tool", "_call>", '"arguments": 1', "text", "é🦙"),
        *("{", "}", '"', "\\", ",", "<", "\n", " ", "\u2028"),
    ]
)


@given(
    st.lists(fragments, max_size=10).map("".join),
    st.lists(st.integers(0, 200), max_size=8),
    st.sampled_from([(OPEN, CLOSE), (OPEN, ""), ("", "")]),
    st.sampled_from([None, 1, 2]),
)
def test_cuts_do_not_matter_in_any_format(
    text: str, cuts: list[int], around: tuple[str, str], max_calls: int | None
) -> None:
    def read(*bounds: int) -> tuple[str, list[tuple[str, str]]]:
        parser = ToolCallParser(*around, max_calls=max_calls)
        pieces = [piece for start, stop in itertools.pairwise(bounds) for piece in parser.push(text[start:stop])]
        return joined(pieces + parser.finish(), text)

    whole = read(0, len(text))
    assert read(0, *sorted(min(cut, len(text)) for cut in cuts), len(text)) == whole
    assert read(*range(len(text) + 1)) == whole
    if not whole[1]:
        assert whole[0] == text
