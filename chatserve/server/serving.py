"""`serve`: run the application under uvicorn until a signal, drain, and leave with status 0."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from chatserve.config import Config
from chatserve.engine.async_engine import AsyncEngine
from chatserve.engine.garbage import relax_garbage_collection
from chatserve.errors import ConfigError
from chatserve.server.app import create_app
from chatserve.server.authentication import api_keys
from chatserve.server.listening import bind, uvicorn_config
from chatserve.server.starting import answer_while_starting

# After the grace period: time for last error events to leave before connections are cut.
_FLUSH_SECONDS = 0.25

# What the engine may take longer than the grace period, because a step that has begun cannot be stopped.
_SLOW_STEP_SECONDS = 1.0


def serve(
    make_engine: Callable[[], AsyncEngine], config: Config, *, on_ready: Callable[[str], None] | None = None
) -> None:
    """Listen, build the engine, and return once the server has shut down.

    Until the engine is there, ``/health`` says "starting", and every other request is refused with 503.

    Ctrl-C and SIGTERM drain: running answers get ``config.shutdown_grace`` seconds, then end with an error event, and
    connections whose clients do not read are cut. A second Ctrl-C cuts everything at once.

    Args:
        make_engine: called once the address is bound; what it raises passes through.
        on_ready: called with the base URL, such as ``http://127.0.0.1:8000``, once requests are taken.

    Raises:
        ConfigError: the address cannot be listened on, or a file of keys or certificates cannot be used.
    """
    _check_before_loading(config)
    with bind(config) as listener, answer_while_starting(listener, config) as end_starting:
        engine = make_engine()
        end_starting()
        relax_garbage_collection()
        server = DrainingServer(engine, config, on_ready)
        with _quiet_signals(), asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(server.serve(sockets=[listener]))


def _check_before_loading(config: Config) -> None:
    """Find out before a model is loaded, which may take minutes."""
    api_keys(config)
    if config.ssl_certfile is None:
        if config.ssl_keyfile is not None:
            raise ConfigError("ssl_keyfile: needs --ssl-certfile too")
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"ssl_certfile: {config.ssl_certfile} cannot be used: {error}") from error


@contextmanager
def _quiet_signals() -> Iterator[None]:
    """Uvicorn raises the signals it caught once more when it is done; let that do nothing, not even a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class DrainingServer(uvicorn.Server):
    """A uvicorn server that drains the engine while it shuts down and then cuts what is left."""

    def __init__(self, engine: AsyncEngine, config: Config, on_ready: Callable[[str], None] | None = None) -> None:
        self._on_ready = on_ready
        self._patience = config.shutdown_grace + _SLOW_STEP_SECONDS
        super().__init__(uvicorn_config(create_app(engine, config), config))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._on_ready is not None and sockets:
            host, port = sockets[0].getsockname()[:2]
            scheme = "https" if self.config.is_ssl else "http"
            self._on_ready(f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # The lifespan's end drains the engine; by itself uvicorn comes to it only after the last connection has closed.
        ending = asyncio.create_task(self.lifespan.shutdown())
        cutting = asyncio.create_task(self._cut_after(ending))
        await super().shutdown(sockets)
        cutting.cancel()
        await asyncio.gather(cutting, return_exceptions=True)
        await self._cut()
        await asyncio.wait({ending}, timeout=_SLOW_STEP_SECONDS)

    async def _cut_after(self, ending: asyncio.Task[None]) -> None:
        """End every answer within the grace period; a client that does not read would keep its connection for ever."""
        await asyncio.wait({ending}, timeout=self._patience)
        if self.server_state.connections:
            await asyncio.sleep(_FLUSH_SECONDS)
        await self._cut()

    async def _cut(self) -> None:
        """Cut the connections that are left and let their requests end as they do when a client goes.

        Left to the end of the event loop, they would be cancelled there, each with a traceback.
        """
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        if self.server_state.tasks:
            await asyncio.wait(set(self.server_state.tasks), timeout=_SLOW_STEP_SECONDS)
