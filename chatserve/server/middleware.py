"""Pure ASGI middleware: request ids, the access log, and a last net for exceptions.

Nothing here wraps `receive`, so a disconnect reaches the endpoints at once.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chatserve.server.errors import failure_of
from chatserve.server.json_log import FIELDS
from chatserve.server.traffic import Traffic

_access = logging.getLogger("chatserve.access")
_log = logging.getLogger("chatserve.server")

_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_CLIENT_GONE = 499


class RequestLog:
    """Gives each request an id (the client's, when sane) and returns it as ``x-request-id``; logs and counts its end.

    Endpoints find the id as ``request.state.request_id``.
    """

    def __init__(self, app: ASGIApp, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(Headers(scope=scope).get("x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id
        id_header = (b"x-request-id", request_id.encode("ascii"))
        started, status = time.perf_counter(), _CLIENT_GONE

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), id_header]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - started
            self._traffic.note(scope, status, seconds)
            line = (request_id, scope["method"], _path(scope), status, seconds * 1000)
            _access.info("%s %s %s %d %.1fms", *line, extra={FIELDS: _fields(scope, *line)})


def _fields(scope: Scope, request_id: str, method: str, path: str, status: int, milliseconds: float) -> dict[str, Any]:
    """The access line for a log that machines read."""
    client = scope.get("client")
    return {
        "request_id": request_id,
        "client": client[0] if client else None,
        "method": method,
        "path": path,
        "status": status,
        "milliseconds": round(milliseconds, 1),
    }


def _path(scope: Scope) -> str:
    """The path as it was sent: percent-encoded, so that it cannot break a log line."""
    raw: bytes = scope["raw_path"]
    return raw.decode("ascii", "backslashreplace")


def request_id_of(proposed: str | None) -> str:
    """The client's id when it is short and harmless to log, else a new one."""
    if proposed and _SANE_ID.fullmatch(proposed):
        return proposed
    return f"req-{uuid.uuid4().hex}"


class CatchAll:
    """Turns an unexpected exception into a 500 in the usual shape, and logs its traceback.

    Starlette's own handler for it sits outside all other middleware: its answer would lack request id and CORS headers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_started = False

        async def watched_send(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception as error:
            _log.exception("request %s failed", _request_id(scope))
            if has_started:
                raise
            await failure_of(error).response()(scope, receive, send)


def _request_id(scope: Scope) -> Any:
    return scope.get("state", {}).get("request_id", "-")
