"""A strict reading of the UI's event streams."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Event:
    """A named event; `id` is None in streams without ids."""

    name: str
    data: Any
    id: int | None


def parse_event(block: str) -> Event | None:
    """One event; None for a comment."""
    fields: dict[str, str] = {}
    for line in block.split("\n"):
        name, colon, value = line.partition(": ")
        assert colon, block
        assert name not in fields, block
        fields[name] = value
    if fields.keys() == {""}:
        return None
    assert fields.keys() - {"id"} == {"event", "data"}
    return Event(fields["event"], json.loads(fields["data"]), int(fields["id"]) if "id" in fields else None)


class Reader:
    """Reads one response event by event."""

    def __init__(self, response: httpx.Response) -> None:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        self._events = _events(response)

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def next(self) -> Event:
        """The next event."""
        return next(self._events)

    def until(self, name: str) -> list[Event]:
        """Events up to and including the first of this name."""
        found = []
        for event in self._events:
            found.append(event)
            if event.name == name:
                return found
        raise AssertionError(f"no {name} among {found}")


def _events(response: httpx.Response) -> Iterator[Event]:
    rest = ""
    for chunk in response.iter_text():
        *blocks, rest = (rest + chunk).split("\n\n")
        yield from filter(None, map(parse_event, blocks))
    assert rest == ""


@contextmanager
def reading(http: httpx.Client, method: str, path: str, **options: Any) -> Iterator[Reader]:
    """An open stream; leaving it closes the connection."""
    with http.stream(method, path, **options) as response:
        yield Reader(response)


def new_id() -> str:
    """An id for an answer, as a client chooses it."""
    return secrets.token_hex(16)
