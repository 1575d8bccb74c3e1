"""`ToolFormat`: how a model writes tool calls, and how tools are shown to one whose template does not know them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any, TypeAlias

from chatserve.text.json_call import JsonCall
from chatserve.text.mistral_call import MistralCall
from chatserve.text.tool_parser import CallReader, ToolCallParser
from chatserve.text.vocabulary import Vocabulary

# As in `chatserve.text.grammar_compiler`, for schemas inside a larger grammar.
_WHITE_SPACE = r"\n?[ \t]{0,20}"

# The parts of a format that a vocabulary may have special tokens for, and the place of an id.
_PART = re.compile(r"(\[[A-Z_]+\]|</?tool_call>|\{id\})")
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")

Turn: TypeAlias = Mapping[str, Any]
Function: TypeAlias = tuple[str, Any]
"""The name of a function that may be called, with the JSON schema of its arguments."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls are written. Where a part is the name of a special token, such as ``[ARGS]``, it is that token.

    Attributes:
        opening: what stands before each call, or before the list of them; "" where a call is a whole answer.
        head: text between the opening and the arguments, which are JSON; ``{name}`` stands for the function's name and
            ``{id}`` for nine letters or digits.
        tail: text behind the arguments.
        closing: the end of `tail` that belongs to the opening rather than to the call.
        between: text between two calls.
        is_list: the calls stand in brackets, behind one opening.
        reader: reads calls behind the opening.
        special: the special tokens among the parts, by name.
    """

    opening: str
    head: str
    tail: str
    closing: str = ""
    between: str = ""
    is_list: bool = False
    reader: Callable[[], CallReader] = JsonCall
    special: Mapping[str, int] = field(default_factory=dict)

    def over(self, vocabulary: Vocabulary) -> ToolFormat:
        """This format with the special tokens that the vocabulary has for its parts."""
        names = _PART.findall(self.opening + self.head + self.tail)
        ids = {name: vocabulary.special_token_id(name) for name in names}
        return replace(self, special={name: token_id for name, token_id in ids.items() if token_id is not None})

    def parser(self, functions: Container[str], max_calls: int | None = None) -> ToolCallParser:
        """Reads an answer; takes at most so many calls.

        Args:
            functions: names of those that may be called. Where a call is a whole answer, a JSON object that calls none
                of them is content; behind an opening every call is taken (see `ToolCallParser`).
            max_calls: further calls are dropped; None: there is no limit.
        """
        reader = self.reader if self.opening else partial(JsonCall, functions)
        return ToolCallParser(self.opening, self.closing, reader=reader, max_calls=max_calls)

    def call(self, name: str, arguments: str) -> str:
        """The text of one call, in formats without lists and ids; `arguments` is JSON."""
        return f"{self.opening}{self._head(name)}{arguments}{self.tail}"

    def calls_grammar(self, functions: Sequence[Function], *, has_several: bool, otherwise: Any = None) -> str:
        """A Lark grammar of answers that are calls.

        Args:
            functions: those that may be called.
            has_several: more than one call is allowed.
            otherwise: JSON schema of an answer that is allowed instead of calls; None: there is none.
        """
        if not self.opening:
            others = [] if otherwise is None else [otherwise]
            return f"start: {_object_rule(functions, others)}"
        answer = "" if otherwise is None else f" | {_json_rule(otherwise)}"
        start = f"start: {self._lark(self.opening)} calls{answer}"
        return "\n".join([start, *self._call_rules(functions, has_several)])

    def text_or_calls_grammar(self, functions: Sequence[Function]) -> str:
        """A Lark grammar of answers that are any text, in which every call is of one of the functions.

        Where a call is a whole answer, one that begins as a JSON object does is held to be such an object, and it may
        have a name together with parameters or arguments only if it is a call.
        """
        if not self.opening:
            return _BARE_TEXT + f"object: {_object_rule(functions, _NO_CALLS)}"
        rules = ["start: (open calls)* TEXT"]
        if self.opening in self.special:
            spelled = re.escape(self.opening)  # it would be read as the token is
            rules.append(f"open: TEXT {self._lark(self.opening)}")
            rules.append(rf"TEXT: /(.|\n)*/ & ~/(.|\n)*{spelled}(.|\n)*/")
        else:
            rules.append(f"open[lazy]: TEXT {json.dumps(self.opening)}")
            rules.append(r"TEXT: /(.|\n)*/")
        return "\n".join([*rules, *self._call_rules(functions, has_several=self.is_list)])

    def _call_rules(self, functions: Sequence[Function], has_several: bool) -> list[str]:
        """The rule ``calls``, of what stands behind the first opening, and those it needs."""
        if self.is_list:
            more = f" ({self._lark(self.between)} call)*" if has_several else ""
            calls = f'" "? "[" call{more} "]"'
        else:
            again = self._lark(self.between + self.opening)
            calls = f"call ({again} call)*" if has_several else "call"
        rules = [f"calls: {calls}", "call: " + " | ".join(f"call_{index}" for index in range(len(functions)))]
        for index, (name, schema) in enumerate(functions):
            head, tail = self._lark(self._head(name)), self._lark(self.tail)
            rules.append(f"call_{index}: {head} {_json_rule(_parameters(schema))} {tail}")
        return rules

    def _head(self, name: str) -> str:
        return self.head.replace("{name}", json.dumps(name)[1:-1])

    def _lark(self, text: str) -> str:
        """What matches this text, in the syntax of Lark."""
        return " ".join(self._lark_part(part) for part in _PART.split(text) if part)

    def _lark_part(self, part: str) -> str:
        if part == "{id}":
            return "/[a-zA-Z0-9]{9}/"
        return f"<[{self.special[part]}]>" if part in self.special else json.dumps(part)


TAGGED = ToolFormat(
    "<tool_call>",
    '\n{"name": "{name}", "arguments": ',
    "}\n</tool_call>",
    closing="</tool_call>",
    between="\n",
)
"""As Hermes and Qwen models write calls; also for models that know nothing of tools."""

BARE = ToolFormat("", '{"name": "{name}", "parameters": ', "}")
"""As Llama 3 models write the one call that is their whole answer."""

MISTRAL_LIST = ToolFormat(
    "[TOOL_CALLS]",
    '{"name": "{name}", "arguments": ',
    "}",
    between=", ",
    is_list=True,
    reader=MistralCall,
)
"""As Mistral models up to Small 3.1 write calls (tokenizers v3 and v7)."""

MISTRAL = ToolFormat("[TOOL_CALLS]", "{name}[ARGS]", "", reader=MistralCall)
"""As later Mistral models write them (tokenizer v13)."""

MISTRAL_WITH_ID = ToolFormat("[TOOL_CALLS]", "{name}[CALL_ID]{id}[ARGS]", "", reader=MistralCall)
"""As those between them do, with an id in each call (tokenizer v11)."""


# An answer with calls that have no opening. The lexer takes the longest match: no text may begin as an object does.
# (A quotation mark is \x22, since the compiler's limits take others for the ends of strings.)
_BARE_TEXT = r"""
start: SPACE? (TEXT | object REST?)?
SPACE: /[ \t\r\n]+/
TEXT: /([^{ \t\r\n]|\{[^\x22} \t\r\n])(.|\n)*/
REST: /(.|\n)+/
"""
_NO_CALLS = (
    {"type": "object", "properties": {"name": False}},
    {"type": "object", "properties": {"parameters": False, "arguments": False}},
)


def tool_format(template_source: str) -> ToolFormat:
    """The format that a chat template teaches, as far as its text tells."""
    if "[TOOL_CALLS]" in template_source:
        if "[ARGS]" not in template_source:
            return MISTRAL_LIST
        return MISTRAL_WITH_ID if "[CALL_ID]" in template_source else MISTRAL
    is_bare = "<tool_call>" not in template_source and '"parameters"' in template_source
    return BARE if is_bare else TAGGED


def has_short_ids(template_source: str) -> bool:
    """Whether a template demands ids as `with_short_ids` makes them."""
    return MISTRAL.opening in template_source


def with_short_ids(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """A conversation in which every id of a call is nine letters or digits, as the templates of Mistral demand.

    Ids that are so already, as those made here, stay; others come from a client that has talked to another server.
    """
    return [_with_short_ids(turn) for turn in turns]


def _with_short_ids(turn: Turn) -> dict[str, Any]:
    short = dict(turn)
    if turn.get("tool_call_id"):
        short["tool_call_id"] = _short_id(turn["tool_call_id"])
    if turn.get("tool_calls"):
        short["tool_calls"] = [_with_short_id(call) for call in turn["tool_calls"]]
    return short


def _with_short_id(call: Mapping[str, Any]) -> dict[str, Any]:
    """Without one the template says what it lacks."""
    rest = {name: value for name, value in call.items() if name != "id"}
    return {**rest, "id": _short_id(call["id"])} if call.get("id") else rest


def _short_id(call_id: str) -> str:
    return call_id if _SHORT_ID.fullmatch(call_id) else sha256(call_id.encode()).hexdigest()[:9]


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


def _object_rule(functions: Sequence[Function], others: Sequence[Any]) -> str:
    """What matches a JSON object that calls a function as `BARE` does, or JSON of another schema.

    They are one schema, since its lexemes are small: the longest match of a call's whole head would leave no other JSON
    that begins with the same characters.
    """
    calls = [_call_schema(name, _parameters(schema), f"urn:function:{name}") for name, schema in functions]
    answers = [_alone(other, f"urn:answer:{index}") for index, other in enumerate(others)]
    return _json_rule({"anyOf": [*calls, *answers]})


def _call_schema(name: str, parameters: Any, uri: str) -> dict[str, Any]:
    """A call as an object; some Llama models put a type before the name."""
    properties = {"type": {"const": "function"}, "name": {"const": name}, "parameters": _alone(parameters, uri)}
    required = ["name", "parameters"]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _alone(schema: Any, uri: str) -> Any:
    """A schema as a part of another, whose references keep their meaning.

    Older drafts would ignore the identifier beside a reference, so the draft is left out.
    """
    if not isinstance(schema, Mapping):
        return schema
    return {"$id": uri, **{name: value for name, value in schema.items() if name != "$schema"}}


def _parameters(schema: Any) -> Any:
    """The schema of a function's arguments; without one it takes none."""
    return {"type": "object", "properties": {}, "additionalProperties": False} if schema is None else schema


def _json_rule(schema: Any) -> str:
    """What matches JSON of this schema."""
    given = schema if isinstance(schema, Mapping) else {"anyOf": [schema]}
    return "%json " + json.dumps({**given, "x-guidance": {"whitespace_pattern": _WHITE_SPACE}})
