"""`create_app`: the Starlette application over an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatserve.config import Config
from chatserve.engine.async_engine import AsyncEngine
from chatserve.errors import ChatserveError
from chatserve.server.authentication import Authentication, api_keys
from chatserve.server.chat import ChatRoutes
from chatserve.server.completions import CompletionRoutes
from chatserve.server.documentation import PATHS as DOCUMENTATION
from chatserve.server.documentation import DocumentationRoutes
from chatserve.server.errors import failure_of
from chatserve.server.information import InformationRoutes
from chatserve.server.metrics import MetricsRoutes
from chatserve.server.middleware import CatchAll, RequestLog
from chatserve.server.page import page_routes
from chatserve.server.prefixes import PrefixRoutes
from chatserve.server.responses_api import ResponsesRoutes
from chatserve.server.tokens import TokenRoutes
from chatserve.server.traffic import Traffic
from chatserve.server.turnstile import Turnstile
from chatserve.server.ui import UiRoutes


def create_app(engine: AsyncEngine, config: Config) -> Starlette:
    """The whole HTTP interface. Its lifespan ends with `engine.shutdown`; starting the engine is the caller's."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        with suppress(asyncio.CancelledError):  # after a second Ctrl-C nobody waits for a step that is running
            await engine.shutdown(config.shutdown_grace)

    async def refuse(request: Request, error: Exception) -> Response:
        headers = error.headers if isinstance(error, HTTPException) else None
        if isinstance(error, HTTPException) and error.status_code in (404, 405):
            error.detail = f"{request.method} {request.url.path[:200]} is not a route of this server."
        return failure_of(error, engine_status=engine.status).response(headers)

    pages, traffic = page_routes(), Traffic()
    open_paths = ["/health", *DOCUMENTATION, *(page.path for page in pages if isinstance(page, Route))]
    app = Starlette(
        routes=[
            *ChatRoutes(engine, config).routes(),
            *CompletionRoutes(engine, config).routes(),
            *ResponsesRoutes(engine, config).routes(),
            *TokenRoutes(engine, config).routes(),
            *PrefixRoutes(engine, config).routes(),
            *InformationRoutes(engine).routes(),
            *MetricsRoutes(engine, traffic).routes(),
            *DocumentationRoutes(needs_key=bool(api_keys(config)), root_path=config.root_path or "").routes(),
            *UiRoutes(engine, config).routes(),
            *pages,
        ],
        middleware=middleware_stack(config, open_paths, traffic),
        exception_handlers={ChatserveError: refuse, HTTPException: refuse},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def middleware_stack(config: Config, open_paths: Sequence[str], traffic: Traffic) -> list[Middleware]:
    """What every request passes, outermost first; `open_paths` need no key."""
    stack = [Middleware(RequestLog, traffic=traffic), Middleware(Turnstile)]
    if config.cors_origins:
        stack.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(config.cors_origins),
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "retry-after", "x-should-retry"],
            )
        )
    if keys := api_keys(config):
        stack.append(Middleware(Authentication, keys=keys, open_paths=open_paths))
    return [*stack, Middleware(CatchAll)]
