"""`Traffic`: how many HTTP requests there were, by route, and how long they took."""

from __future__ import annotations

from collections import Counter

from starlette.routing import Route
from starlette.types import Scope

from chatserve.engine.latencies import WHOLE_BOUNDS, Histogram

_BOUNDS = (0.005, 0.025, *WHOLE_BOUNDS)


class Traffic:
    """Counts requests that have ended. Use it on the loop's thread.

    Attributes:
        requests: numbers by method, route and status; a route is a pattern such as ``/v1/models/{id:path}``, or empty
            where none was found, so that clients cannot make up new ones.
        seconds: how long they took, by method and route, to the last byte of an answer.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.seconds: dict[tuple[str, str], Histogram] = {}

    def note(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope.get("route")
        key = scope["method"], route.path if isinstance(route, Route) else ""
        self.requests[*key, status] += 1
        self.seconds.setdefault(key, Histogram(_BOUNDS)).observe(seconds)
