"""The state of the engine as the browser UI watches it: first whole, then what changes. See docs/ui-protocol.md."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chatserve.engine.async_engine import AsyncEngine
from chatserve.engine.view import EngineView, RequestView, Snapshot
from chatserve.server.frames import encode

_PERIOD = 0.2
_MAX_PLAIN_BLOCKS = 4096  # longer maps are sent as runs


class EngineFeed:
    """Snapshots of one engine for all who watch it; nothing is computed while nobody does."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._view: EngineView | None = None
        self._num_watchers = 0
        self._snapshot: Snapshot | None = None
        self._taken_at = 0.0

    async def events(self) -> AsyncIterator[bytes]:
        """Frames of ``state`` and ``change`` events, until the server shuts down."""
        self._num_watchers += 1
        try:
            before = self._look()
            yield _frame("state", state_body(before))
            while self._engine.status == "ready":
                await asyncio.sleep(_PERIOD)
                now = self._look()
                if change := change_body(before, now):
                    yield _frame("change", change)
                before = now
        finally:
            self._num_watchers -= 1
            if not self._num_watchers:
                self._view = self._snapshot = None

    def _look(self) -> Snapshot:
        """A snapshot that is at most half a period old."""
        now = time.monotonic()
        self._view = self._view or EngineView(self._engine)
        if self._snapshot is None or now - self._taken_at > _PERIOD / 2:
            self._snapshot, self._taken_at = self._view.snapshot(), now
        return self._snapshot


def state_body(snapshot: Snapshot) -> dict[str, Any]:
    """Everything."""
    return {
        "blocks": _blocks(snapshot),
        "map": _listed(snapshot.codes),
        "owners": _listed(snapshot.owners),
        "requests": _requests(snapshot),
        "rates": _rates(snapshot),
    }


def change_body(before: Snapshot, now: Snapshot) -> dict[str, Any]:
    """What differs; empty when nothing does."""
    parts = {"blocks": _blocks, "requests": _requests, "rates": _rates}
    change: dict[str, Any] = {name: part(now) for name, part in parts.items() if part(now) != part(before)}
    changed = np.flatnonzero((before.codes != now.codes) | (before.owners != now.owners))
    if len(changed):
        columns = np.stack([changed, now.codes[changed], now.owners[changed]], axis=1)
        change["map"] = columns.tolist()
    return change


def _blocks(snapshot: Snapshot) -> dict[str, int]:
    total = len(snapshot.codes)
    held = snapshot.num_used + snapshot.num_shared
    return {
        "total": total,
        "used": snapshot.num_used,
        "shared": snapshot.num_shared,
        "cached": snapshot.num_cached,
        "free": total - held - snapshot.num_cached,
        "swapped": snapshot.num_swapped,
        "block_size": snapshot.block_size,
    }


def _requests(snapshot: Snapshot) -> list[dict[str, Any]]:
    return [_request(view) for view in snapshot.requests]


def _request(view: RequestView) -> dict[str, Any]:
    return {name.removeprefix("num_"): value for name, value in dataclasses.asdict(view).items()}


def _rates(snapshot: Snapshot) -> dict[str, float]:
    return {
        "tokens_per_s": round(snapshot.tokens_per_s, 1),
        "requests_per_s": round(snapshot.requests_per_s, 2),
    }


def _listed(values: NDArray[Any]) -> Any:
    """One number a block, or [value, count] runs when there are many."""
    if len(values) <= _MAX_PLAIN_BLOCKS:
        return values.tolist()
    starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    counts = np.diff(starts, append=len(values))
    return [list(run) for run in zip(values[starts].tolist(), counts.tolist(), strict=True)]


def _frame(name: str, data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(data))
