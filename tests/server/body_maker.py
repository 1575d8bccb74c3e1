"""`BodyMaker`: request bodies that are right in part, made from the server's own OpenAPI document."""

from __future__ import annotations

import json
import random
from typing import Any

from chatserve.server.openapi import OPERATIONS, openapi_document
from tests.server.harness import HI

_DOCUMENT = openapi_document(needs_key=False)
_SCHEMAS: dict[str, Any] = _DOCUMENT["components"]["schemas"]
_RIGHT = {"messages": HI, "input": "Hi", "prompt": "Hi"}
_LIMITS = {"max_tokens": 5, "max_output_tokens": 5}

# Values that are wrong almost everywhere, and words that are right somewhere.
_STRAY: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 5, 1.5, -0.0, 1e308, 10**30, -(10**30), 2**63),
    *("", "x", "\u2028", "\ud800", "\x00", "a" * 300, "(a|b)*", 'start: "x"', "root ::= x"),
    *("auto", "none", "required", "text", "json_object", "json_schema", "function", "function_call"),
    *("user", "assistant", "system", "tool", "message", "function_call_output", "input_text"),
    *("beam", "greedy", "sampling", "speculative", "best-of", "majority", "guidance", "shared-prefix", "diverse-beam"),
    *([], {}, [[]], [{}], ["a", "b"], {"a": 1}, {"width": 3}, {"prefix": "x"}, {"type": "function"}),
    *({"type": "object"}, {"type": "string", "pattern": "a+"}, {"enum": []}),
]
_KEYS = ["a", "type", "properties", "enum", "items", "$ref", "anyOf", "minimum", "width", "prefix", "1", "5"]


class BodyMaker:
    """Bodies by a seed: most fields of the right type, some not, some at the ends of their ranges."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._operations = [operation for operation in OPERATIONS if operation.body is not None]

    def make(self) -> tuple[str, bytes]:
        """A path and a body for it."""
        operation = self._random.choice(self._operations)
        assert operation.body is not None
        schema = _SCHEMAS[operation.body.__name__]
        body = self._value(schema, 0)
        if isinstance(body, dict):
            self._make_likelier(body, schema["properties"])
        return operation.path, json.dumps(body).encode()

    def _make_likelier(self, body: dict[str, Any], fields: dict[str, Any]) -> None:
        """What is needed is right more often than not, and answers are short."""
        body |= {name: right for name, right in _RIGHT.items() if name in fields and self._random.random() < 0.6}
        body |= {name: limit for name, limit in _LIMITS.items() if name in fields}
        if self._random.random() < 0.7:
            body.pop("model", None)

    def _value(self, schema: dict[str, Any], depth: int) -> Any:
        if self._random.random() < 0.12 or depth > 6:
            return self._random.choice(_STRAY)
        if "$ref" in schema:
            return self._value(_SCHEMAS[schema["$ref"].rpartition("/")[2]], depth)
        if "anyOf" in schema:
            return self._value(self._random.choice(schema["anyOf"]), depth + 1)
        match schema.get("type"):
            case "object" if "properties" in schema:
                return self._fields(schema, depth)
            case "object":
                return {
                    self._random.choice(_KEYS): self._random.choice(_STRAY) for _ in range(self._random.randint(0, 3))
                }
            case "array":
                return [self._value(schema.get("items", {}), depth + 1) for _ in range(self._random.randint(0, 3))]
            case "integer" | "number" as kind:
                return self._number(schema, is_integer=kind == "integer")
            case "string":
                return self._random.choice([value for value in _STRAY if isinstance(value, str)])
            case _:
                return self._random.choice(_STRAY)

    def _fields(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        share = self._random.random() * (0.5 if depth else 0.15)
        return {
            name: self._value(field, depth + 1)
            for name, field in schema["properties"].items()
            if self._random.random() < (0.97 if name in schema.get("required", ()) else share)
        }

    def _number(self, schema: dict[str, Any], *, is_integer: bool) -> float:
        low, high = schema.get("minimum", -3), schema.get("maximum", 20)
        number = self._random.choice([low, high, self._random.uniform(max(low, -50), min(high, 50))])
        return int(number) if is_integer else float(number)
