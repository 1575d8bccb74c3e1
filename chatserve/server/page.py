"""The page at ``/``: the built web UI when it is installed, else a small page that needs no build."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

_FOLDER = Path(__file__).parent

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_folder() -> Path:
    """Where the page's files lie: the built UI's folder when its index exists, else the static page's."""
    built = _FOLDER / "web_dist"
    return built if (built / "index.html").is_file() else _FOLDER / "static"


def page_routes() -> list[BaseRoute]:
    """``/`` and one route for each file or folder beside the index; every other path stays a 404 of the API."""
    folder = page_folder()
    routes: list[BaseRoute] = [Route("/", _file_endpoint(folder / "index.html"))]
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            routes.append(Mount(f"/{entry.name}", _PageFiles(directory=entry)))
        else:
            routes.append(Route(f"/{entry.name}", _file_endpoint(entry)))
    return routes


def _file_endpoint(path: Path) -> Callable[[Request], Awaitable[Response]]:
    async def serve_file(request: Request) -> Response:
        return FileResponse(path, headers=_HEADERS)

    return serve_file


class _PageFiles(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        return response
