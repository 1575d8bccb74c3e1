"""Bodies made from the OpenAPI document, right in part: never a server error, and nothing is left behind."""

from __future__ import annotations

import logging
from collections import Counter

import httpx
import pytest

from tests.server.body_maker import BodyMaker
from tests.server.harness import eventually, serve_fake
from tests.server.server_process import server_process

ERROR_FIELDS = {"message", "type", "param", "code"}
ALLOWED = {200, 400, 404, 413, 429}


def send_bodies(http: httpx.Client, seed: int, count: int) -> None:
    """Send so many and check each answer; the pool is empty afterwards."""
    maker, statuses = BodyMaker(seed), Counter[int]()
    for _ in range(count):
        path, body = maker.make()
        response = http.post(path, content=body)
        statuses[response.status_code] += 1
        assert response.status_code in ALLOWED, (path, body, response.text)
        if response.status_code != 200:
            assert set(response.json()["error"]) == ERROR_FIELDS
        elif response.headers["content-type"].startswith("text/event-stream"):
            assert b'data: {"error"' not in response.content, (path, body, response.text)
    assert eventually(lambda: is_empty(http))
    assert min(statuses[200], statuses[400]) > count / 10, "bodies are neither all right nor all wrong"


def is_empty(http: httpx.Client) -> bool:
    """No request and no sequence is left, and no block but those of the prefixes that the bodies have registered."""
    stats = http.get("/health").json()["stats"]
    names = ("requests_running", "requests_waiting", "sequences")
    return not any(stats[name] for name in names) and stats["blocks_used"] == stats["blocks_pinned"]


def test_some_bodies(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    with serve_fake("Hi <tool_call>", num_blocks=400) as served:
        served.http.get("/health")  # opens the connection that all bodies go through
        num_tasks = served.num_tasks()
        send_bodies(served.http, 0, 150)
        assert eventually(lambda: served.num_tasks() <= num_tasks)


@pytest.mark.full
def test_ten_thousand_bodies_leave_nothing_behind() -> None:
    """Memory grows at first, as far as what is remembered is bounded (compiled grammars, for one)."""
    with (
        server_process(answer="Hi <tool_call>", num_blocks=400) as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=60) as http,
    ):
        resident: list[int] = []
        for seed in range(1, 11):
            send_bodies(http, seed, 1000)
            resident.append(server.resident_bytes())
        print([f"{size / 2**20:.0f} MiB" for size in resident])
        assert resident[-1] < 1.05 * max(resident[:4])
        assert "Traceback" not in server.leave()
