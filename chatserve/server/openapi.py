"""The OpenAPI document: paths from a table, bodies from the msgspec structs, ranges from the tables that check them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

import chatserve
from chatserve.server.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from chatserve.server.prefixes import PrefixBody
from chatserve.server.responses_bodies import ResponsesBody
from chatserve.server.validation import ITEM_LIMITS, LENGTH_LIMITS, LIMITS, Limit

_SCHEMAS = "#/components/schemas/"


@dataclass(frozen=True, slots=True)
class Operation:
    """One route.

    Attributes:
        body: struct of its JSON body, if it takes one.
        answer: what comes back.
        media_type: of the answer; with `has_stream` it may be an event stream instead.
        refusals: statuses of errors that it may answer beside those that every route may.
        has_unready: its answer may have the status 503 as well.
        is_open: it needs no key.
    """

    method: str
    path: str
    summary: str
    answer: str
    body: type[msgspec.Struct] | None = None
    media_type: str = "application/json"
    has_stream: bool = False
    refusals: tuple[int, ...] = ()
    has_unready: bool = False
    is_open: bool = False


_EVERYWHERE = (400, 414, 431, 500, 503)  # malformed HTTP, a long head, a fault, a model that is still being loaded
_BODY = (408, 413)
_GENERATION = (*_BODY, 404, 429, 504)

OPERATIONS = (
    Operation(
        "post",
        "/v1/chat/completions",
        "Chat completion",
        "A chat completion.",
        ChatBody,
        has_stream=True,
        refusals=_GENERATION,
    ),
    Operation(
        "post",
        "/v1/completions",
        "Completion of a text",
        "A completion.",
        CompletionBody,
        has_stream=True,
        refusals=_GENERATION,
    ),
    Operation("post", "/v1/responses", "Response", "A response.", ResponsesBody, has_stream=True, refusals=_GENERATION),
    Operation("get", "/v1/models", "Models", "The model that is served, as a list."),
    Operation("get", "/v1/models/{id}", "One model", "The model.", refusals=(404,)),
    Operation(
        "get", "/v1/decoders", "Decoders", "What can drive the decoding, each with the schema of its parameters."
    ),
    Operation(
        "post",
        "/v1/prefixes",
        "Register a prefix",
        "The prefix, computed and pinned.",
        PrefixBody,
        refusals=(*_BODY, 429),
    ),
    Operation("get", "/v1/prefixes", "Registered prefixes", "All prefixes with their lengths."),
    Operation("delete", "/v1/prefixes/{name}", "Remove a prefix", "What was removed.", refusals=(404,)),
    Operation("post", "/tokenize", "Text to token ids", "Token ids.", TokenizeBody, refusals=(*_BODY, 404)),
    Operation("post", "/detokenize", "Token ids to text", "The text.", DetokenizeBody, refusals=(*_BODY, 404)),
    Operation(
        "get",
        "/health",
        "State of the server",
        "200 when requests are taken, else 503.",
        has_unready=True,
        is_open=True,
    ),
    Operation("get", "/metrics", "Metrics for Prometheus", "All metrics.", media_type="text/plain"),
)

_REASONS = {
    400: "The request is wrong; `param` names the field.",
    401: "A valid API key is needed.",
    404: "There is no such thing.",
    408: "The body did not arrive in time.",
    413: "The body is too long.",
    414: "The URL is too long.",
    429: "Too many requests wait; see Retry-After.",
    431: "The headers are too long.",
    500: "The answer broke.",
    503: "The server is starting, draining or dead.",
    504: "The answer did not end within the `timeout` of the request.",
}

_DESCRIPTIONS = {
    "model": "Id of the model that is served; may be left out.",
    "stream": "Send the answer as server-sent events while it is made.",
    "top_k": "Keep the k likeliest tokens; 0 or -1 keeps all.",
    "min_p": "Drop tokens less likely than this share of the likeliest one's probability.",
    "repetition_penalty": "Divides the logits of tokens that occur already; 1 changes nothing.",
    "logit_bias": "Token ids with what is added to their logits.",
    "seed": "Same seed and same body: same answer, whatever else runs.",
    "n": "Number of answers.",
    "min_tokens": "An answer cannot end before.",
    "stop": "Texts that end an answer; they are not part of it.",
    "stop_token_ids": "Further tokens that end an answer.",
    "ignore_eos": "The model's own end tokens do not end an answer.",
    "decoder": "What drives the decoding, by its name in /v1/decoders.",
    "decoder_params": "Its parameters, by the schema in /v1/decoders.",
    "use_beam_search": "Short for the decoder beam.",
    "num_beams": "Short for the decoder beam of that width.",
    "best_of": "Short for the decoder best-of.",
    "cache_salt": "Shares cached prompts only with requests that have the same salt.",
    "priority": "Under the priority policy lower runs first.",
    "return_trace": "Add what the decoder records of its search.",
    "response_format": "JSON in general, or of a schema.",
    "structured_outputs": "The answer as JSON of a schema, by a regular expression, a grammar or a choice.",
    "guided_json": "The answer is JSON of this schema.",
    "guided_regex": "The whole answer matches this regular expression.",
    "guided_grammar": "The answer follows this grammar (Lark as llguidance has it, or GBNF).",
    "guided_choice": "The answer is one of these texts.",
    "continue_final_message": "The answer continues the last message, an assistant's.",
    "echo": "Send the prompt before the answer.",
    "previous_response_id": "Not supported: nothing is stored.",
}


def openapi_document(needs_key: bool, root_path: str = "") -> dict[str, Any]:
    """The whole document, OpenAPI 3.1.

    Args:
        needs_key: whether clients must send an API key.
        root_path: the path under which a proxy serves the routes.
    """
    bodies = [operation.body for operation in OPERATIONS if operation.body is not None]
    _, schemas = msgspec.json.schema_components(bodies, ref_template=_SCHEMAS + "{name}")
    for schema in schemas.values():
        _refine(schema)
    schemas["Error"] = _ERROR
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "chatserve",
            "version": chatserve.__version__,
            "description": "A streaming LLM chat server whose decoding you can program; compatible with OpenAI's API.",
        },
        "paths": _paths(needs_key),
        "components": {"schemas": schemas},
    }
    if root_path:
        document["servers"] = [{"url": root_path}]
    if needs_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _paths(needs_key: bool) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, needs_key)
    return paths


def _operation(operation: Operation, needs_key: bool) -> dict[str, Any]:
    content: dict[str, Any] = {operation.media_type: {}}
    if operation.has_stream:
        content["text/event-stream"] = {}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": f"{operation.method}{operation.path}".replace("/", "_").replace("{", "").replace("}", ""),
        "responses": {"200": {"description": operation.answer, "content": content}},
    }
    error = {"application/json": {"schema": {"$ref": _SCHEMAS + "Error"}}}
    has_lock = needs_key and not operation.is_open
    for status in sorted({*_EVERYWHERE, *operation.refusals} | ({401} if has_lock else set())):
        shown = content if status == 503 and operation.has_unready else error
        described["responses"][str(status)] = {"description": _REASONS[status], "content": shown}
    if operation.is_open:
        described["security"] = []
    if operation.body is not None:
        reference = {"$ref": _SCHEMAS + operation.body.__name__}
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": reference}}}
    if "{" in operation.path:
        name = operation.path.partition("{")[2].rstrip("}")
        described["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
    return described


def _refine(schema: dict[str, Any]) -> None:
    """Add descriptions, and the ranges that are checked behind the structs."""
    for name, field in schema.get("properties", {}).items():
        if name in _DESCRIPTIONS:
            field["description"] = _DESCRIPTIONS[name]
        for part in field.get("anyOf", [field]):
            if part.get("type") in ("integer", "number") and name in LIMITS:
                part.update(_bounds(LIMITS[name], "minimum", "maximum"))
            elif part.get("type") in ("array", "object", "string"):
                _refine_items(name, part)


def _refine_items(name: str, part: dict[str, Any]) -> None:
    nouns = {"array": ("minItems", "maxItems"), "string": ("minLength", "maxLength")}
    is_one_stop = name == "stop" and part["type"] == "string"
    if name in LENGTH_LIMITS and part["type"] in nouns and not is_one_stop:
        part.update(_bounds(LENGTH_LIMITS[name], *nouns[part["type"]]))
    items = part.get("items", part.get("additionalProperties"))
    if name in ITEM_LIMITS and isinstance(items, dict):
        items.update(_bounds(ITEM_LIMITS[name], "minimum", "maximum"))


def _bounds(limit: Limit, low: str, high: str) -> dict[str, float]:
    bounds: dict[str, float] = {}
    if limit.low is not None:
        bounds["exclusiveMinimum" if limit.is_open else low] = limit.low
    if limit.high is not None:
        bounds[high] = limit.high
    return bounds


_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
