"""`Authentication`: middleware that lets in only requests with one of the configured API keys."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from starlette._utils import get_route_path
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from chatserve.config import Config
from chatserve.errors import ConfigError
from chatserve.server.errors import Failure


def api_keys(config: Config) -> tuple[str, ...]:
    """All keys of a configuration; empty when none is needed. Raises ConfigError for a file that gives none."""
    if config.api_key_file is None:
        return config.api_keys
    try:
        lines = Path(config.api_key_file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"api_key_file: {config.api_key_file} cannot be read: {error}") from error
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise ConfigError(f"api_key_file: {config.api_key_file} holds no key")
    return (*config.api_keys, *found)


class Authentication:
    """Answers 401 to requests without a valid key. Keys are compared in constant time, and never logged.

    Args:
        keys: those that let in.
        open_paths: paths that need no key: load balancers and browsers ask for them before they have one.
    """

    def __init__(self, app: ASGIApp, keys: Iterable[str], open_paths: Iterable[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_let_in = scope["type"] != "http" or get_route_path(scope) in self._open_paths
        if is_let_in or self._is_valid(Headers(scope=scope).get("authorization")):
            await self._app(scope, receive, send)
            return
        refusal = Failure(
            401,
            "authentication_error",
            "A valid API key is needed: send it as Authorization: Bearer KEY.",
            code="invalid_api_key",
            retry_helps=False,
        )
        await refusal.response({"WWW-Authenticate": "Bearer"})(scope, receive, send)

    def _is_valid(self, header: str | None) -> bool:
        scheme, _, key = (header or "").partition(" ")
        given = _digest(key.strip().encode("latin-1"))
        # Digests have one length, and all of them are compared: the time tells nothing about any key.
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return scheme.lower() == "bearer" and any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
