"""`answer_while_starting`: a server that says that the model is being loaded, until it is."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatserve.config import Config
from chatserve.errors import UnavailableError
from chatserve.server.app import middleware_stack
from chatserve.server.errors import failure_of
from chatserve.server.listening import uvicorn_config
from chatserve.server.responses import json_response
from chatserve.server.traffic import Traffic

# Connections are closed with each answer, so that no client goes on speaking to this server.
_CLOSE = {"Connection": "close"}
_FLUSH_SECONDS = 1  # for answers to clients that have just connected


@contextmanager
def answer_while_starting(listener: socket.socket, config: Config) -> Iterator[Callable[[], None]]:
    """Answer in a thread of its own: the caller's may load a model, and Ctrl-C ends that at once.

    Yields what ends it. From then on nobody accepts connections, but the socket goes on listening, so that whoever
    listens to it next finds those that came meanwhile.
    """
    server = _StartingServer(config)
    thread = threading.Thread(target=server.run_on, args=(listener.dup(),), name="chatserve-starting")
    thread.start()
    try:
        yield server.end
    finally:
        server.end()
        thread.join()


class _StartingServer(uvicorn.Server):
    def __init__(self, config: Config) -> None:
        super().__init__(uvicorn_config(_starting_app(config), config))
        self.config.timeout_graceful_shutdown = _FLUSH_SECONDS
        self._end: Future[None] = Future()
        self._is_deaf = threading.Event()

    def run_on(self, listener: socket.socket) -> None:
        try:
            with listener, asyncio.Runner(loop_factory=self.config.get_loop_factory()) as runner:
                runner.run(self.serve(sockets=[listener]))
        finally:
            self._is_deaf.set()

    def end(self) -> None:
        """Returns once no more connections are accepted; those that are open may take a moment longer."""
        if not self._end.done():
            self._end.set_result(None)
        self._is_deaf.wait()

    async def main_loop(self) -> None:
        """Uvicorn's own looks ten times a second whether it is to end."""
        await self.on_tick(0)
        await asyncio.wrap_future(self._end)
        for server in self.servers:
            server.close()
        self._is_deaf.set()
        if self.server_state.connections:  # uvicorn would close those at once that have just come, without an answer
            await asyncio.sleep(_FLUSH_SECONDS)


def _starting_app(config: Config) -> Starlette:
    async def health(request: Request) -> Response:
        response = json_response({"status": "starting", "model": config.model, "stats": {}}, 503)
        response.headers.update(_CLOSE)
        return response

    async def refuse(request: Request, error: Exception) -> Response:
        failure = failure_of(UnavailableError("the model is being loaded"), engine_status="starting")
        return failure.response(_CLOSE)

    return Starlette(
        routes=[Route("/health", health)],
        middleware=middleware_stack(config, ["/health"], Traffic()),
        exception_handlers={HTTPException: refuse},  # no other route is found
    )
