"""Plain JSON responses."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
from starlette.responses import Response

_encoder = msgspec.json.Encoder()


def json_response(value: Any, status: int = 200) -> Response:
    """`value` as JSON."""
    return Response(_encoder.encode(value), status, media_type="application/json")


def client_gone() -> Response:
    """What is "sent" to a client that has closed its connection: nobody reads it, the access log shows 499."""
    return Response(status_code=499)


def response_id(prefix: str) -> str:
    """A new unique id such as ``chatcmpl-5f0c...``; the engine's log shows the same."""
    return f"{prefix}-{uuid.uuid4().hex}"
