"""Bodies in, checked structs out; every refusal names the field, its value and what is allowed.

Everything about a field's range or support stands in one of two tables, `LIMITS` and `UNSUPPORTED`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from chatserve.config import Config
from chatserve.errors import RequestError
from chatserve.server.bodies import GenerationBody
from chatserve.server.brackets import check_brackets
from chatserve.server.errors import BodyTooLargeError, SlowBodyError
from chatserve.server.misspelling import check_spelling
from chatserve.server.type_refusals import type_refusal

_log = logging.getLogger("chatserve.server")

BodyType = TypeVar("BodyType", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Limit:
    """Allowed range of a number; `is_open` excludes `low` itself. None is no bound."""

    low: float | None = None
    high: float | None = None
    is_open: bool = False

    def allows(self, value: float) -> bool:
        if self.low is not None and (value < self.low or (self.is_open and value == self.low)):
            return False
        return self.high is None or value <= self.high

    def __str__(self) -> str:
        if self.low is None:
            return f"at most {self.high}"
        low = f"greater than {self.low}" if self.is_open else f"at least {self.low}"
        return low if self.high is None else f"{low} and at most {self.high}"


_BIG = 2**31 - 1

LIMITS: dict[str, Limit] = {
    "temperature": Limit(0, 100),
    "top_p": Limit(0, 1, is_open=True),
    "top_k": Limit(-1, _BIG),
    "min_p": Limit(0, 1),
    "presence_penalty": Limit(-2, 2),
    "frequency_penalty": Limit(-2, 2),
    "repetition_penalty": Limit(0.01, 100),
    "seed": Limit(-(2**63), 2**64 - 1),
    "n": Limit(1, 128),
    "max_tokens": Limit(1, _BIG),
    "max_completion_tokens": Limit(1, _BIG),
    "max_output_tokens": Limit(1, _BIG),
    "min_tokens": Limit(0, _BIG),
    "top_logprobs": Limit(0, 20),
    "logprobs": Limit(0, 5),  # of legacy completions; the chat field is true or false
    "priority": Limit(-(2**31), _BIG),
    "timeout": Limit(0, 86_400, is_open=True),
    "num_beams": Limit(1, 128),
    "best_of": Limit(1, 128),
}
ITEM_LIMITS: dict[str, Limit] = {
    "logit_bias": Limit(-100, 100),
    "stop_token_ids": Limit(0, _BIG),
    "tokens": Limit(0, _BIG),
}
LENGTH_LIMITS: dict[str, Limit] = {
    "stop": Limit(0, 64),
    "logit_bias": Limit(0, 16_384),
    "decoder_params": Limit(0, 256),
    "stop_token_ids": Limit(0, 1024),
    "cache_salt": Limit(0, 256),
    "decoder": Limit(1, 128),
}


UNSUPPORTED: dict[str, Callable[[Any], bool]] = {
    # field: whether a value asks for nothing that is missing here
    "functions": lambda value: value == [],
    "function_call": lambda value: value in ("none", "auto"),
    "modalities": lambda value: value in ([], ["text"]),
    "audio": lambda value: value == {},
    "suffix": lambda value: value == "",
}


async def read_body(request: Request, config: Config) -> bytes:
    """The whole request body.

    Raises BodyTooLargeError as soon as it is known to be too long, SlowBodyError when it does not arrive in time.
    """
    max_bytes = config.max_body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(config.body_timeout):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise _too_large(max_bytes)
    except ClientDisconnect as gone:
        raise RequestError("The connection closed before the whole body had arrived.") from gone
    except TimeoutError:
        message = f"The request body did not arrive within {config.body_timeout:g} seconds."
        raise SlowBodyError(message, code="body_timeout") from None
    return bytes(body)


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The request body is longer than {max_bytes} bytes.", code="body_too_large")


def parse(raw: bytes, body_type: type[BodyType]) -> BodyType:
    """Decode a JSON body and check it against the tables. Raises RequestError."""
    if not raw.strip():
        raise RequestError("The request body is empty; a JSON object is expected.")
    check_brackets(raw)
    try:
        body = msgspec.json.decode(raw, type=body_type)
    except msgspec.ValidationError as error:
        raise type_refusal(str(error), raw) from None
    except msgspec.DecodeError as error:
        raise RequestError(f"The request body is not valid JSON: {error}.") from None
    _check_unknown_fields(raw, body_type)
    check_tables(body)
    return body


def _check_unknown_fields(raw: bytes, body_type: type[msgspec.Struct]) -> None:
    unknown = msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).keys() - set(body_type.__struct_fields__)
    if issubclass(body_type, GenerationBody):
        check_spelling(unknown)
    if unknown and _log.isEnabledFor(logging.DEBUG):
        _log.debug("ignored unknown fields: %s", ", ".join(sorted(unknown)))


def check_tables(body: msgspec.Struct) -> None:
    """Raise RequestError for the first field whose value the tables do not allow."""
    for field in body.__struct_fields__:
        value = getattr(body, field)
        if value is None:
            continue
        if field in UNSUPPORTED and not UNSUPPORTED[field](value):
            raise RequestError(_unsupported_message(field, value), param=field, code="unsupported_value")
        if field in LIMITS and not isinstance(value, bool) and not LIMITS[field].allows(value):
            raise RequestError(
                f"{field} is {_shown(value)}; it must be {LIMITS[field]}.", param=field, code="invalid_value"
            )
        is_one_stop = field == "stop" and isinstance(value, str)
        if field in LENGTH_LIMITS and not is_one_stop and not LENGTH_LIMITS[field].allows(len(value)):
            allowed = LENGTH_LIMITS[field]
            raise RequestError(
                f"{field} has length {len(value)}; it must be {allowed}.", param=field, code="invalid_value"
            )
        if field in ITEM_LIMITS:
            _check_items(field, value)


def _unsupported_message(field: str, value: Any) -> str:
    shown = value.get("type", value) if isinstance(value, dict) else value
    return f"{field} is not supported yet (given: {_shown(shown)}); leave it out."


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _check_items(field: str, value: Any) -> None:
    limit = ITEM_LIMITS[field]
    numbers = value.values() if isinstance(value, dict) else value
    if not numbers or (limit.allows(min(numbers)) and limit.allows(max(numbers))):
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if not limit.allows(item):
            where = f"{field}[{key}]"
            raise RequestError(f"{where} is {_shown(item)}; it must be {limit}.", param=where, code="invalid_value")
