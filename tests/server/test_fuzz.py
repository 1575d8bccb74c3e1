"""Bodies made from the OpenAPI document, right in part: never a server error, and nothing is left behind."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from tests.server.body_maker import BodyMaker
from tests.server.harness import eventually, serve_fake

ERROR_FIELDS = {"message", "type", "param", "code"}
ALLOWED = {200, 400, 404, 413, 429}


def check_bodies(seed: int, count: int) -> None:
    maker, statuses = BodyMaker(seed), Counter[int]()
    with serve_fake("Hi <tool_call>", num_blocks=400) as served:
        for _ in range(count):
            path, body = maker.make()
            response = served.http.post(path, content=body)
            statuses[response.status_code] += 1
            assert response.status_code in ALLOWED, (path, body, response.text)
            if response.status_code != 200:
                assert set(response.json()["error"]) == ERROR_FIELDS
            elif response.headers["content-type"].startswith("text/event-stream"):
                assert b'data: {"error"' not in response.content, (path, body, response.text)
        assert eventually(lambda: served.stat("sequences") == served.stat("requests_running") == 0)
        assert served.stat("blocks_used") == served.stat("blocks_pinned")
    assert min(statuses[200], statuses[400]) > count / 10, "bodies are neither all right nor all wrong"


def test_some_bodies(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    check_bodies(0, 150)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1, 11))
def test_ten_thousand_bodies(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    check_bodies(seed, 1000)
