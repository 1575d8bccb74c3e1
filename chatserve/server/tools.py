"""`ToolUse`: the tools that a chat request offers, and whether they have to be used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from chatserve.errors import RequestError
from chatserve.server.bodies import ChatBody, FunctionDefinition, Tool, ToolChoice
from chatserve.text import Grammar, Vocabulary
from chatserve.text.chat_template import ChatTemplate
from chatserve.text.tool_format import TAGGED, ToolFormat, tool_format
from chatserve.text.tool_parser import ToolCallParser

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_TOOLS = 128


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What the answer may call.

    Attributes:
        functions: those it may call; the prompt shows all of `shown`.
        shown: the tools as chat templates take them.
        is_forced: the answer must be a call.
        has_several: it may hold more than one.
    """

    format: ToolFormat
    functions: Sequence[FunctionDefinition]
    shown: list[dict[str, Any]]
    is_forced: bool
    has_several: bool

    def parser(self) -> ToolCallParser:
        """Reads one choice of the answer."""
        return self.format.parser({function.name for function in self.functions}, None if self.has_several else 1)

    @property
    def shown_token_ids(self) -> frozenset[int]:
        """Special tokens that the parser has to see."""
        return frozenset(self.format.special.values())

    def grammar(self, answer: Grammar | None) -> Grammar | None:
        """The grammar of an answer that may hold calls, and is otherwise as `answer` says.

        Calls that are not forced are held to their schemas when a function is declared ``strict``. Where calls have no
        opening, an answer that begins with a brace and something JSON could go on with is then JSON to its brace's end.
        Where `answer` itself allows an object with a function's name and arguments, such an object is read as a call,
        whatever its arguments.

        Raises RequestError when `answer` is of a kind that cannot be combined with calls.
        """
        callable_now = [(function.name, function.parameters) for function in self.functions]
        if self.is_forced:
            source = self.format.calls_grammar(callable_now, has_several=self.has_several)
        elif answer is not None:
            source = self.format.calls_grammar(
                callable_now, has_several=self.has_several, otherwise=_json_schema_of(answer)
            )
        elif any(function.strict for function in self.functions):
            source = self.format.text_or_calls_grammar(callable_now)
        else:
            return None
        return Grammar("lark", source, "tools")


def tool_use(body: ChatBody, template: ChatTemplate | None, vocabulary: Vocabulary) -> ToolUse | None:
    """What the body offers to a model with this template and vocabulary; None when nothing may be called.

    Raises RequestError that names the bad field.
    """
    tools = body.tools or []
    functions = _functions(tools)
    choice = body.tool_choice
    if not functions:
        if isinstance(choice, ToolChoice) or choice == "required":
            raise RequestError("tool_choice asks for a call, but there are no tools.", param="tool_choice")
        choice = "none"
    if isinstance(choice, str) and choice not in ("auto", "none", "required"):
        raise RequestError(
            f"tool_choice is {choice[:80]!r}; it must be auto, none, required or a function.",
            param="tool_choice",
            code="invalid_value",
        )
    if choice == "none":
        return None
    if isinstance(choice, ToolChoice):
        functions = [_chosen(functions, choice)]
    written = tool_format(template.source) if template is not None and template.takes_tools else TAGGED
    return ToolUse(
        format=written.over(vocabulary),
        functions=functions,
        shown=[_without_none(msgspec.to_builtins(tool)) for tool in tools],
        is_forced=choice is not None and choice != "auto",
        has_several=body.parallel_tool_calls is not False and not isinstance(choice, ToolChoice),
    )


def _functions(tools: Sequence[Tool]) -> list[FunctionDefinition]:
    if len(tools) > _MAX_TOOLS:
        raise RequestError(f"tools has {len(tools)} entries, allowed are {_MAX_TOOLS}.", param="tools")
    found: dict[str, FunctionDefinition] = {}
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        if tool.type != "function" or tool.function is None:
            raise RequestError(
                f"{path} must be of type function and have a function.", param=path, code="unsupported_value"
            )
        name = tool.function.name
        if not _NAME.fullmatch(name) or name in found:
            raise RequestError(
                f"{path}.function.name is {name[:80]!r}; names are up to 64 letters, digits, dots, dashes or "
                "underscores, and different.",
                param=f"{path}.function.name",
                code="invalid_value",
            )
        found[name] = tool.function
    return list(found.values())


def _chosen(functions: Sequence[FunctionDefinition], choice: ToolChoice) -> FunctionDefinition:
    wanted = choice.function.name if choice.function is not None else ""
    for function in functions:
        if function.name == wanted and choice.type == "function":
            return function
    raise RequestError(f"tool_choice names no function of tools: {wanted[:80]!r}.", param="tool_choice")


def _json_schema_of(answer: Grammar) -> Any:
    if answer.kind != "json_schema":
        raise RequestError(
            f"{answer.param} cannot be combined with tools unless tool_choice is none.", param=answer.param
        )
    try:
        return msgspec.json.decode(answer.source)
    except msgspec.DecodeError as error:
        raise RequestError(f"{answer.param} is not valid JSON: {error}.", param=answer.param) from None


def _without_none(value: Any) -> Any:
    """Templates would print fields that are absent."""
    if isinstance(value, dict):
        return {name: _without_none(inner) for name, inner in value.items() if inner is not None}
    return value
