"""From ``response_format`` and the ``guided_*`` fields of a body to the `Grammar` of its answers."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from chatserve.engine.async_engine import AsyncEngine
from chatserve.errors import RequestError
from chatserve.server.bodies import GenerationBody, ResponseFormat, StructuredOutputs
from chatserve.text import Grammar
from chatserve.text.grammar import choice_grammar

_ANY_OBJECT = '{"type":"object"}'


def answer_grammar(body: GenerationBody) -> Grammar | None:
    """What the body wants its answers to look like; None: anything. Raises RequestError for more than one wish."""
    outputs = body.structured_outputs or StructuredOutputs()
    wishes = {
        "response_format": _response_format(body.response_format),
        **_guided("guided_", body.guided_json, body.guided_regex, body.guided_grammar, body.guided_choice),
        **_guided("structured_outputs.", outputs.json, outputs.regex, outputs.grammar, outputs.choice),
    }
    given = {name: grammar for name, grammar in wishes.items() if grammar is not None}
    if len(given) > 1:
        first, second, *_ = given
        raise RequestError(f"{second} cannot be combined with {first}.", param=second, code="invalid_value")
    return next(iter(given.values()), None)


async def check_grammar(engine: AsyncEngine, grammar: Grammar | None) -> None:
    """Compile off the event loop, for a moment later the engine to find. Raises RequestError when it is impossible."""
    if grammar is not None:
        await asyncio.to_thread(lambda: engine.vocabulary.grammars.compile(grammar))


def schema_grammar(schema: Any, param: str) -> Grammar:
    """The answer is JSON of this schema, given as a JSON value or as its text."""
    source = schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
    return Grammar("json_schema", source, param)


def _response_format(given: ResponseFormat | None) -> Grammar | None:
    match given.type if given is not None else "text":
        case "text":
            return None
        case "json_object":
            return Grammar("json_schema", _ANY_OBJECT, "response_format")
        case "json_schema":
            assert given is not None
            return _named_schema(given)
        case other:
            raise RequestError(
                f"response_format.type is {other[:80]!r}; it must be text, json_object or json_schema.",
                param="response_format.type",
                code="unsupported_value",
            )


def _named_schema(given: ResponseFormat) -> Grammar:
    path = "response_format.json_schema"
    if given.json_schema is None or given.json_schema.schema is None:
        missing = path if given.json_schema is None else f"{path}.schema"
        raise RequestError(f"{missing} is missing.", param=missing, code="missing_required_parameter")
    return schema_grammar(given.json_schema.schema, f"{path}.schema")


def _guided(
    prefix: str, schema: Any, regex: str | None, grammar: str | None, choice: list[str] | None
) -> dict[str, Grammar | None]:
    """The four wishes of vLLM's API, by the names of their fields."""
    if choice is not None and not choice:
        raise RequestError(f"{prefix}choice is empty.", param=f"{prefix}choice", code="invalid_value")
    return {
        f"{prefix}json": None if schema is None else schema_grammar(schema, f"{prefix}json"),
        f"{prefix}regex": None if regex is None else Grammar("regex", regex, f"{prefix}regex"),
        f"{prefix}grammar": None if grammar is None else Grammar("lark", grammar, f"{prefix}grammar"),
        f"{prefix}choice": None if choice is None else choice_grammar(choice, f"{prefix}choice"),
    }
