"""`ChatTemplate`: messages to the prompt text a model was trained on, by the jinja template that comes with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from chatserve.errors import ModelLoadError, RequestError

# Stands behind a content that is to be continued, and is looked for in what the template made of it. It begins with a
# private character, so that nothing trims or joins it.
_CUT = "\uf8ffchatserve-continues-here\uf8ff"


class ChatTemplate:
    """A compiled chat template, rendered in a sandbox that is set up as transformers does.

    Args:
        source: jinja source, as in ``tokenizer.chat_template`` of a GGUF or ``chat_template`` of a tokenizer folder.
        bos_token: text of the begin token, for templates that name it.
        eos_token: text of the end token, likewise.

    Attributes:
        takes_tools: the template has a place for the tools that may be called.

    Raises:
        ModelLoadError: the source is not a valid template.
    """

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            variables = meta.find_undeclared_variables(environment.parse(source))
        except TemplateError as error:
            raise ModelLoadError(f"the chat template cannot be compiled: {error}") from error
        self.takes_tools = "tools" in variables

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """The prompt text of a conversation; parse it with special tokens.

        Args:
            messages: plain data. Contents are strings: lists of parts must be joined before. Fields that are None are
                left out, because most templates would print them.
            add_generation_prompt: end with the beginning of the assistant's turn.
            tools: JSON schemas of the tools that may be called.
            extra: further variables of the template.

        Raises:
            RequestError: a message is no mapping, a content is neither a string nor absent, or the template cannot
                render these messages.
        """
        plain = [_plain_message(message, i) for i, message in enumerate(messages)]
        variables = {"documents": None, **extra, **self._tokens, "messages": plain, "tools": tools}
        try:
            return self._template.render(variables, add_generation_prompt=add_generation_prompt)
        except Exception as error:  # the template is foreign code: whatever it raises, it cannot take these messages
            raise RequestError(f"the chat template refuses these messages: {error}", param="messages") from error

    def render_unfinished(self, messages: Sequence[Mapping[str, Any]], **extra: Any) -> str:
        """The prompt text up to the end of the last message's content, which the answer continues.

        Takes and raises what `render` does; RequestError as well when the template does not print that content.
        """
        last = {**messages[-1], "content": (messages[-1].get("content") or "") + _CUT}
        text, cut, _ = self.render([*messages[:-1], last], add_generation_prompt=False, **extra).rpartition(_CUT)
        if not cut:
            raise RequestError("the chat template does not print the last message", param="messages")
        return text


def _plain_message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        kind = type(message).__name__
        raise RequestError(f"a message must have a role and a content, this is {kind}", param=f"messages[{index}]")
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        kind = type(content).__name__
        raise RequestError(f"the content must be text, not {kind}", param=f"messages[{index}].content")
    return {name: value for name, value in message.items() if value is not None}


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, LoopControlExtension]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=lambda pattern: datetime.now(UTC).astimezone().strftime(pattern),
        dict=lambda *args, **kwargs: dict(*args, **kwargs),
        namespace=_Namespace,
    )
    return environment


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's tokens for training; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja declares it as an instance variable)

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


class _Namespace(jinja2.utils.Namespace):
    """A namespace that refuses underscored names, a way towards Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # no named self: a template may use that name
        self, *rest = args
        jinja2.utils.Namespace.__init__(self)
        for name, value in dict(*rest, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a chat template may not set the attribute {name!r}")
        super().__setitem__(name, value)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja's own filter escapes HTML; models were trained on plain JSON."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
