"""The page at ``/``: the built web UI when there is one, else a plain page that says how to build it."""

from __future__ import annotations

import gzip
import mimetypes
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

_FOLDER = Path(__file__).parent

# Everything comes from this server, and nothing stands inline in a page.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
}
_HASHED = "assets"  # the folder in which a file's name changes with its contents
_ONE_YEAR = "public, max-age=31536000, immutable"
_LEAST_COMPRESSED_BYTES = 1000


def page_folder() -> Path:
    """Where the page's files lie: the built UI's folder when its index exists, else the plain page's."""
    built = _FOLDER / "web_dist"
    return built if (built / "index.html").is_file() else _FOLDER / "static"


def page_routes() -> list[BaseRoute]:
    """A route for each file of the page, and ``/`` for its index; every other path stays a 404 of the API.

    The files are read and compressed once, now: requests touch no disk, and no path of a request becomes a file's.
    """
    folder = page_folder()
    routes: list[BaseRoute] = []
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        place = file.relative_to(folder)
        endpoint = _endpoint(file, is_hashed=place.parts[0] == _HASHED)
        routes.append(Route("/" if place.name == "index.html" else f"/{place.as_posix()}", endpoint))
    return routes


def _endpoint(file: Path, *, is_hashed: bool) -> Callable[[Request], Awaitable[Response]]:
    """Serves one file, compressed where the client takes that and it helps."""
    body = file.read_bytes()
    packed = gzip.compress(body, mtime=0) if len(body) >= _LEAST_COMPRESSED_BYTES else body
    media_type = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    headers = {**_HEADERS, "Cache-Control": _ONE_YEAR if is_hashed else "no-cache"}
    packed_headers = {**headers, "Content-Encoding": "gzip"}

    async def serve_file(request: Request) -> Response:
        if len(packed) < len(body) and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(packed, headers=packed_headers, media_type=media_type)
        return Response(body, headers=headers, media_type=media_type)

    return serve_file
