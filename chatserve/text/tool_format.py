"""`ToolFormat`: how a model writes tool calls, and how tools are shown to one whose template does not know them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chatserve.text.tool_parser import ToolCallParser

# As in `chatserve.text.grammar_compiler`, for schemas inside a larger grammar.
_WHITE_SPACE = r"\n?[ \t]{0,20}"

Turn = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """What stands around a call, which is a JSON object with the name and the arguments.

    Attributes:
        opening: text before each call; "" where a call is a whole answer.
        closing: text behind it.
        arguments_key: key of the arguments, beside ``name``.
    """

    opening: str
    closing: str
    arguments_key: str

    def parser(self, max_calls: int | None = None) -> ToolCallParser:
        """Reads an answer; takes at most so many calls."""
        return ToolCallParser(self.opening.strip(), self.closing.strip(), max_calls=max_calls)

    def call(self, name: str, arguments: str) -> str:
        """The text of one call; `arguments` is JSON."""
        return f"{self._head(name)}{arguments}}}{self.closing}"

    def calls_grammar(self, functions: Sequence[tuple[str, Any]], *, has_several: bool, otherwise: Any = None) -> str:
        """A Lark grammar of answers that are calls.

        Args:
            functions: the names that may be called, with the JSON schemas of their arguments.
            has_several: more than one call is allowed.
            otherwise: JSON schema of an answer that is allowed instead of calls; None: there is none.
        """
        calls = 'call ("\\n" call)*' if has_several and self.opening else "call"
        rules = [
            f"start: {calls}" + ("" if otherwise is None else f" | %json {json.dumps(otherwise)}"),
            "call: " + " | ".join(f"call_{index}" for index in range(len(functions))),
        ]
        for index, (name, schema) in enumerate(functions):
            tail = json.dumps("}" + self.closing)
            rules.append(f"call_{index}: {json.dumps(self._head(name))} %json {_schema(schema)} {tail}")
        return "\n".join(rules)

    def text_or_calls_grammar(self, functions: Sequence[tuple[str, Any]]) -> str:
        """A Lark grammar of answers that are any text, in which every call is of one of the functions."""
        rules = [
            "start: (" + " | ".join(f"call_{index}" for index in range(len(functions))) + ")* TEXT",
            r"TEXT: /(.|\n)*/",
        ]
        trigger = self.opening.strip()
        for index, (name, schema) in enumerate(functions):
            head, tail = json.dumps(self._head(name).removeprefix(trigger)), json.dumps("}" + self.closing)
            rules.append(f"open_{index}[lazy]: TEXT {json.dumps(trigger)}")
            rules.append(f"call_{index}: open_{index} {head} %json {_schema(schema)} {tail}")
        return "\n".join(rules)

    def _head(self, name: str) -> str:
        return f'{self.opening}{{"name": {json.dumps(name)}, "{self.arguments_key}": '


TAGGED = ToolFormat("<tool_call>\n", "\n</tool_call>", "arguments")
"""As Hermes and Qwen models write calls; also for models that know nothing of tools."""

BARE = ToolFormat("", "", "parameters")
"""As Llama 3 models write the one call that is their whole answer."""


def tool_format(template_source: str) -> ToolFormat:
    """The format that a chat template teaches, as far as its text tells."""
    is_bare = "<tool_call>" not in template_source and '"parameters"' in template_source
    return BARE if is_bare else TAGGED


def with_tools_told(turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A conversation about tools for a template that knows only plain messages.

    The tools are described at the end of the system message, calls are written into the assistant's messages, and
    results become messages of the user.
    """
    told: list[dict[str, Any]] = []
    for turn in turns:
        if turn["role"] == "tool":
            result = f"<tool_response>\n{turn['content']}\n</tool_response>"
            if told and told[-1].get("is_result"):
                told[-1]["content"] += "\n" + result
            else:
                told.append({"role": "user", "content": result, "is_result": True})
        else:
            told.append(_plain_turn(turn))
    for turn in told:
        turn.pop("is_result", None)
    return _with_description(told, tools) if tools else told


def _plain_turn(turn: Turn) -> dict[str, Any]:
    plain = {name: value for name, value in turn.items() if name != "tool_calls"}
    calls = [call["function"] for call in turn.get("tool_calls") or ()]
    texts = [TAGGED.call(call["name"], _as_json(call["arguments"])) for call in calls]
    plain["content"] = "\n".join([text for text in (turn["content"], *texts) if text])
    return plain


def _as_json(arguments: Any) -> str:
    """Arguments as the model wrote them; a text is what could not be read as JSON."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _with_description(turns: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = TAGGED.call("function_name", '{"argument": "value"}')
    block = (
        "You may call functions. These are available, each described by one line of JSON:\n"
        f"<tools>\n{described}\n</tools>\n"
        f"To call one, answer with its name and its arguments in this form:\n{example}"
    )
    if turns and turns[0]["role"] == "system":
        return [{**turns[0], "content": f"{turns[0]['content']}\n\n{block}"}, *turns[1:]]
    return [{"role": "system", "content": block}, *turns]


def _schema(schema: Any) -> str:
    """A schema for ``%json``; without one a function takes no arguments."""
    given = {"type": "object", "properties": {}, "additionalProperties": False} if schema is None else schema
    return json.dumps({**given, "x-guidance": {"whitespace_pattern": _WHITE_SPACE}})
