"""Exceptions to HTTP: status, the OpenAI error body, and the headers that tell a client whether to try again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from chatserve.errors import (
    CapacityError,
    DeadlineError,
    DecoderError,
    GenerationError,
    NotFoundError,
    QueueFullError,
    RequestError,
)


class BodyTooLargeError(RequestError):
    """The request body exceeds ``Config.max_body_bytes``."""


class SlowBodyError(RequestError):
    """The request body did not arrive within ``Config.body_timeout``."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How one exception is told to a client.

    Attributes:
        status: HTTP status code.
        kind: the ``type`` of the error body.
        retry_after: seconds, for the Retry-After header; None leaves it out.
        retry_helps: whether the same request could succeed later; False sends ``x-should-retry: false``.
    """

    status: int
    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: int | None = None
    retry_helps: bool = True

    def body(self) -> bytes:
        """The error body, pure ASCII: it also fits into one ``data:`` line of a stream."""
        error: dict[str, Any] = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode("ascii")

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        """The failure as a whole HTTP response; `headers` are sent along."""
        sent = dict(headers or {})
        if self.retry_after is not None:
            sent["Retry-After"] = str(self.retry_after)
        if not self.retry_helps:
            sent["x-should-retry"] = "false"
        if self.status == HTTPStatus.REQUEST_TIMEOUT:
            sent["Connection"] = "close"  # what may still come of the body is nobody's
        return Response(self.body(), self.status, sent, media_type="application/json")


def failure_of(error: Exception, *, engine_status: str = "draining") -> Failure:
    """Map an exception to what the client is told; a dead engine makes every retry pointless.

    `engine_status` is told with what the engine cannot take; an answer that it cannot go on with ends by draining.
    """
    match error:
        case RequestError():
            return _refusal(error)
        case QueueFullError():
            return Failure(429, "rate_limit_error", error.message, code="queue_full", retry_after=error.retry_after)
        case CapacityError():
            helps = engine_status != "dead"
            retry_after = error.retry_after if helps else None
            kind = "service_unavailable_error"
            return Failure(503, kind, error.message, code=engine_status, retry_after=retry_after, retry_helps=helps)
        case DeadlineError():
            return Failure(504, "timeout_error", error.message, code=error.code, retry_helps=False)
        case GenerationError():
            helps = not isinstance(error, DecoderError)
            return Failure(500, "server_error", error.message, code=error.code, retry_helps=helps)
        case HTTPException():
            return _routing_failure(error)
        case _:
            return Failure(500, "server_error", "Internal error; the server log has the details.", retry_helps=False)


def _refusal(error: RequestError) -> Failure:
    status = 400
    if isinstance(error, NotFoundError):
        status = 404
    elif isinstance(error, BodyTooLargeError):
        status = 413
    elif isinstance(error, SlowBodyError):
        status = 408
    return Failure(status, "invalid_request_error", error.message, error.param, error.code, retry_helps=False)


def _routing_failure(error: HTTPException) -> Failure:
    message = error.detail or HTTPStatus(error.status_code).phrase
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    code = {404: "not_found", 405: "method_not_allowed", 409: "conflict"}.get(error.status_code)
    return Failure(error.status_code, kind, message, code=code, retry_helps=False)
