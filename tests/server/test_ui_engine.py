"""``/ui/engine``: the whole state first, then changes that lead from each state to the next."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chatserve.engine.view import RequestView, Snapshot
from chatserve.server.ui_engine import change_body, state_body
from chatserve.testing import VOCAB_SIZE, RandomLogits
from tests.server.harness import HI, Served, eventually
from tests.server.ui_events import new_id, reading

Start = Callable[..., Served]


class Watcher:
    """Keeps the state up to date by the rules of docs/ui-protocol.md."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = {**state, "map": plain(state["map"]), "owners": plain(state["owners"])}

    def apply(self, change: dict[str, Any]) -> None:
        assert change
        assert change.keys() <= {"blocks", "map", "requests", "rates"}
        for name in change.keys() - {"map"}:
            assert change[name] != self.state[name], "nothing has changed"
            self.state[name] = change[name]
        for block, code, owner in change.get("map", []):
            assert (self.state["map"][block], self.state["owners"][block]) != (code, owner)
            self.state["map"][block], self.state["owners"][block] = code, owner


def plain(values: list[Any]) -> list[int]:
    """A list of numbers or of runs as a list of numbers."""
    if values and isinstance(values[0], list):
        return [value for value, count in values for _ in range(count)]
    return list(values)


def snapshots(num_blocks: int) -> st.SearchStrategy[Snapshot]:
    request = st.builds(
        RequestView,
        id=st.sampled_from("abc"),
        decoder=st.just("beam"),
        state=st.sampled_from(["waiting", "running"]),
        num_sequences=st.integers(1, 3),
        num_blocks=st.integers(0, 9),
        num_tokens=st.integers(1, 99),
    )
    codes = st.lists(st.integers(0, 4), min_size=num_blocks, max_size=num_blocks)
    owners = st.lists(st.integers(-1, 2), min_size=num_blocks, max_size=num_blocks)
    return st.builds(
        Snapshot,
        block_size=st.just(16),
        codes=codes.map(lambda values: np.array(values, np.uint8)),
        owners=owners.map(lambda values: np.array(values, np.int32)),
        requests=st.lists(request, max_size=3),
        num_used=st.integers(0, 3),
        num_shared=st.integers(0, 3),
        num_cached=st.integers(0, 2),
        num_swapped=st.just(0),
        tokens_per_s=st.floats(0, 100),
        requests_per_s=st.floats(0, 10),
    )


@given(st.lists(snapshots(8), min_size=1, max_size=5))
def test_changes_lead_to_the_same_state(moments: list[Snapshot]) -> None:
    watcher = Watcher(state_body(moments[0]))
    for before, now in itertools.pairwise(moments):
        if change := change_body(before, now):
            watcher.apply(change)
        assert watcher.state == state_body(now)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3000)), min_size=3, max_size=9))
def test_long_maps_are_runs(runs: list[tuple[int, int]]) -> None:
    codes = np.repeat(*np.array(runs).T).astype(np.uint8)
    snapshot = Snapshot(16, codes, -np.ones(len(codes), np.int32), [], 0, 0, 0, 0, 0.0, 0.0)
    body = state_body(snapshot)
    assert plain(body["map"]) == codes.tolist()
    assert plain(body["owners"]) == [-1] * len(codes)
    if len(codes) > 4096:
        assert len(body["map"]) <= len(runs)
        assert body["owners"] == [[-1, len(codes)]]


def test_a_beam_search_is_seen_while_it_runs(start_server: Start) -> None:
    served = start_server(RandomLogits(VOCAB_SIZE, 3), delay=0.05)
    search = {"messages": HI, "decoder": "beam", "decoder_params": {"width": 3}, "max_tokens": 60, "ignore_eos": True}
    with reading(served.http, "GET", "ui/engine") as engine:
        watcher = Watcher(engine.until("state")[0].data)
        assert watcher.state["blocks"] == {
            "total": 512,
            "used": 0,
            "shared": 0,
            "cached": 0,
            "free": 512,
            "swapped": 0,
            "block_size": 16,
        }
        assert watcher.state["map"] == [0] * 512
        answer_id = new_id()
        with reading(served.http, "PUT", f"ui/stream/{answer_id}", json=search) as answer:
            request_id = answer.next().data["request_id"]
            while not (watcher.state["requests"] and watcher.state["blocks"]["shared"]):
                watcher.apply(engine.next().data)
            [request] = watcher.state["requests"]
            assert request.keys() == {"id", "decoder", "state", "sequences", "blocks", "tokens"}
            assert (request["id"], request["decoder"], request["state"]) == (request_id, "beam", "running")
            assert watcher.state["owners"].count(0) == request["blocks"] > 0
            assert watcher.state["map"].count(2) == watcher.state["blocks"]["shared"]
            served.http.delete(f"ui/stream/{answer_id}")
        while watcher.state["requests"]:
            watcher.apply(engine.next().data)
    assert watcher.state["owners"] == [-1] * 512
    assert watcher.state["blocks"]["used"] == 0


def test_an_idle_engine_sends_nothing_but_keep_alives(start_server: Start) -> None:
    served = start_server(keepalive_interval=0.2)
    with served.http.stream("GET", "ui/engine") as response:
        chunks = response.iter_text()
        assert next(chunks).startswith("event: state\n")
        assert [next(chunks) for _ in range(3)] == [": keep-alive\n\n"] * 3


def test_watchers_do_not_keep_the_server_from_stopping(start_server: Start) -> None:
    served = start_server()
    with reading(served.http, "GET", "ui/engine") as engine:
        engine.until("state")
        served.engine.status = "draining"
        assert eventually(lambda: list(engine) == [])
