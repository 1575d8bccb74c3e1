"""How the server listens: its socket, and the options of uvicorn."""

from __future__ import annotations

import socket

import uvicorn
from starlette.types import ASGIApp

from chatserve.config import Config
from chatserve.errors import ConfigError
from chatserve.server.connection import connection_class

_BACKLOG = 2048  # uvicorn's


def bind(config: Config) -> socket.socket:
    """A socket that listens. Raises ConfigError when the address cannot be had."""
    listener = socket.socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((config.host, config.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {error}") from error
    return listener


def uvicorn_config(app: ASGIApp, config: Config) -> uvicorn.Config:
    """Options for an app with a lifespan; what they name is loaded."""
    options = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        ws="none",
        lifespan="on",
        server_header=False,
        http=connection_class(config),
        root_path=config.root_path or "",
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
    )
    options.load()
    return options
