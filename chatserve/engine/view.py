"""`EngineView`: what goes on in an engine, for people who watch it. It reads only; call it on the loop's thread."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chatserve.decoding.sequence import Sequence
from chatserve.engine.async_engine import AsyncEngine, Generation
from chatserve.engine.request import Request

FREE, USED, SHARED, CACHED, PINNED = range(5)

State: TypeAlias = Literal["waiting", "prefill", "running", "preempted"]

_RATE_SECONDS = 2.0
_NO_BLOCKS = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a request is.

    Attributes:
        state: "waiting" (never started), "preempted" (waits to be recomputed), "prefill" or "running".
        position: place in the queue, from 1; 0 when it does not wait.
        num_prefilled: prompt tokens whose KV is there.
        num_cached: prompt tokens that were found in the prefix cache.
    """

    state: State
    position: int
    num_prefilled: int
    num_cached: int


def progress(engine: AsyncEngine, generation: Generation) -> Progress:
    """How far a generation is, which must not have ended."""
    request, waiting = generation.request, engine._engine.scheduler.waiting
    position = next((place for place, other in enumerate(waiting, 1) if other is request), 0)
    return Progress(_state(request), position, _num_prefilled(request), request.num_cached_tokens)


@dataclass(frozen=True, slots=True)
class RequestView:
    """A live request: `num_blocks` counts what its sequences share once, `num_tokens` is its longest sequence."""

    id: str
    decoder: str
    state: State
    num_sequences: int
    num_blocks: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The pool and the requests at one moment.

    Attributes:
        codes: uint8[num_blocks]: FREE, USED (one holder), SHARED (several), CACHED (none, but findable) or PINNED (held
            by a registered prefix, perhaps among others).
        owners: int32[num_blocks]: index in `requests` of one that holds the block, -1 for none.
        requests: a request keeps its index while it lives, except that the last one takes an ended one's place.
        num_used: blocks with one holder, pinned or not; `num_shared`: with several.
        num_swapped: blocks in host memory.
        tokens_per_s: published tokens, over the last two seconds; likewise `requests_per_s`, finished requests.
    """

    block_size: int
    codes: NDArray[np.uint8]
    owners: NDArray[np.int32]
    requests: list[RequestView]
    num_used: int
    num_shared: int
    num_cached: int
    num_swapped: int
    tokens_per_s: float
    requests_per_s: float


class EngineView:
    """Looks at one engine several times a second; a look costs less than a millisecond for 10,000 blocks."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine._engine
        self._requests: list[Request] = []
        self._tokens = _Rate()
        self._finished = _Rate()

    def snapshot(self) -> Snapshot:
        """The moment. Rates need a look now and then to be right."""
        self._renew_requests()
        pool, stats = self._engine.pool, self._engine.stats()
        codes = np.minimum(pool.ref_counts, SHARED).astype(np.uint8)
        num_used, num_shared = int(np.count_nonzero(codes == USED)), int(np.count_nonzero(codes == SHARED))
        codes[pool.cached_blocks()] = CACHED
        for table in self._engine.prefixes.tables():
            codes[table.blocks] = PINNED
        owners = np.full(pool.num_blocks, -1, np.int32)
        return Snapshot(
            block_size=pool.block_size,
            codes=codes,
            owners=owners,
            requests=[_look_at(request, owners, index) for index, request in enumerate(self._requests)],
            num_used=num_used,
            num_shared=num_shared,
            num_cached=pool.num_cached,
            num_swapped=int(stats.get("blocks_swapped", 0)),
            tokens_per_s=self._tokens.measure(stats["tokens_published"]),
            requests_per_s=self._finished.measure(stats["requests_finished"]),
        )

    def _renew_requests(self) -> None:
        """Drop ended requests, filling each gap with the last one, and append new ones."""
        known = self._requests
        for index in reversed(range(len(known))):
            if known[index].is_finished:
                known[index] = known[-1]
                known.pop()
        present = set(known)
        known += [request for request in self._engine.requests if request not in present]


class _Rate:
    """Growth of a counter per second, over the last `_RATE_SECONDS`."""

    def __init__(self) -> None:
        self._history: deque[tuple[float, float]] = deque()  # (time, count), oldest first

    def measure(self, count: float) -> float:
        """Note the counter and answer its rate; 0 at the first call."""
        now = time.monotonic()
        self._history.append((now, count))
        while len(self._history) > 2 and self._history[1][0] <= now - _RATE_SECONDS:
            self._history.popleft()
        since, before = self._history[0]
        return (count - before) / (now - since) if now > since else 0.0


def _look_at(request: Request, owners: NDArray[np.int32], index: int) -> RequestView:
    """One request; marks its blocks in `owners` with `index`."""
    sequences = list(request.group.live)
    blocks = _blocks_of(sequences)
    owners[blocks] = index
    return RequestView(
        id=request.given.request_id,
        decoder=request.decoder_name,
        state=_state(request),
        num_sequences=len(sequences),
        num_blocks=len(blocks),
        num_tokens=max(map(len, sequences), default=0),
    )


def _blocks_of(sequences: list[Sequence]) -> NDArray[np.int32]:
    """Blocks that the sequences hold, each once."""
    if len(sequences) == 1:
        return sequences[0]._table.blocks
    return np.unique(np.concatenate([_NO_BLOCKS, *(sequence._table.blocks for sequence in sequences)]))


def _state(request: Request) -> State:
    if not request.is_running:
        return "preempted" if request.num_preemptions else "waiting"
    return "prefill" if _num_prefilled(request) < request.prompt.prompt_len else "running"


def _num_prefilled(request: Request) -> int:
    """Prompt tokens whose KV the furthest of the running tasks has; all once no task is left."""
    length = request.prompt.prompt_len
    return min(length, max((task.num_computed for task in request.tasks), default=length))
