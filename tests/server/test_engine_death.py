"""A fault of the engine itself, at any time: every caller is answered, and the server says that it is dead."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn

import httpx
import pytest

from tests.server.harness import HI, Served, events, eventually, serve_fake
from tests.server.server_process import Letters, server_process

LONG = "x" * 700  # two of these do not fit into the pool together

# name: settings of the engine, the prompt, and how one sees that it has come so far
PHASES: dict[str, tuple[dict[str, Any], str, Callable[[Served], bool]]] = {
    "prefill": (
        {"delay": 0.1, "num_blocks": 2000},
        "x" * 3000,
        lambda served: served.runner.num_forwards > 0 and not served.stat("tokens_published"),
    ),
    "decode": ({"delay": 0.01}, "Hi", lambda served: served.stat("tokens_published") > 20),
    "queued": ({"delay": 0.02, "num_blocks": 64}, LONG, lambda served: served.stat("requests_waiting") > 0),
    "swapped": (
        {"delay": 0.01, "num_blocks": 16, "num_host_blocks": 64, "preemption": "swap"},
        "Hi",
        lambda served: served.stat("blocks_swapped") > 0,
    ),
}


def fail(*arguments: object) -> NoReturn:
    raise ZeroDivisionError


def break_begin(served: Served) -> None:
    served.engine._engine.begin_step = fail  # type: ignore[method-assign]


def break_end(served: Served) -> None:
    served.engine._engine.end_step = fail  # type: ignore[method-assign, assignment]


def end_worker(served: Served) -> None:
    """The thread that runs the model goes."""
    served.engine._worker.shutdown(wait=False)


def break_everything(served: Served) -> None:
    """Not even the requests can be ended."""
    served.engine._engine.scheduler.remove = fail  # type: ignore[method-assign, assignment]
    break_begin(served)


WAYS = [break_begin, break_end, end_worker, break_everything]


def requests(prompt: str) -> list[tuple[str, dict[str, Any]]]:
    """All endpoints, streaming and not; none would end soon."""
    messages = [{"role": "user", "content": prompt}]
    chat, text, responses = "/v1/chat/completions", "/v1/completions", "/v1/responses"
    fields: dict[str, Any] = {"ignore_eos": True}
    return [
        (chat, {"messages": messages, "stream": True, **fields}),
        (chat, {"messages": messages, **fields}),
        (text, {"prompt": [prompt, prompt + "!"], "stream": True, "max_tokens": 200, **fields}),
        (text, {"prompt": prompt, "max_tokens": 200, **fields}),
        (responses, {"input": prompt, "stream": True}),
        (responses, {"input": prompt}),
    ]


def check_answer(response: httpx.Response) -> None:
    """A server error in the usual shape: as a status, or inside the stream, which then comes to its end."""
    if response.status_code != 200:
        assert response.status_code in (500, 503)
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    elif response.url.path == "/v1/responses":
        *_, last = response.text.rstrip("\n").split("\n\n")
        assert last.startswith("event: response.failed\n"), last
    else:
        assert events(response.content)[-1]["error"]["code"] == "engine_dead"


def check_dead(served: Served) -> None:
    health = served.http.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "dead")
    refusal = served.chat()
    assert refusal.status_code == 503
    assert refusal.json()["error"]["code"] == "dead"
    assert refusal.headers["x-should-retry"] == "false"


def ask_all(served: Served, pool: ThreadPoolExecutor, prompt: str) -> list[Future[httpx.Response]]:
    return [pool.submit(served.http.post, path, json=body) for path, body in requests(prompt)]


@pytest.mark.parametrize("break_it", WAYS)
@pytest.mark.parametrize("phase", PHASES)
def test_every_caller_is_answered(phase: str, break_it: Callable[[Served], None]) -> None:
    settings, prompt, has_come_so_far = PHASES[phase]
    with serve_fake(Letters(), **settings) as served, ThreadPoolExecutor(8) as pool:
        answers = ask_all(served, pool, prompt)
        assert eventually(lambda: has_come_so_far(served), 10)
        break_it(served)
        for answer in answers:
            check_answer(answer.result(20))
        check_dead(served)


def break_when_draining(served: Served, break_it: Callable[[Served], None]) -> None:
    assert eventually(lambda: served.engine.status == "draining", 10)
    break_it(served)


@pytest.mark.parametrize("break_it", WAYS)
def test_death_while_the_server_shuts_down(break_it: Callable[[Served], None]) -> None:
    """It does not wait for the rest of the grace period."""
    with ThreadPoolExecutor(8) as pool:
        with serve_fake(Letters(), delay=0.01, shutdown_grace=60) as served:
            answers = ask_all(served, pool, "Hi")
            assert eventually(lambda: served.stat("requests_running") >= len(answers), 10)
            pool.submit(break_when_draining, served, break_it)
        for answer in answers:
            check_answer(answer.result(20))


def test_the_process_of_a_dead_engine_leaves_cleanly() -> None:
    with server_process(delay=0.01, dies_at=40) as server:
        with httpx.Client(base_url=server.url, trust_env=False, timeout=30) as http:
            stream = http.post("/v1/chat/completions", json={"messages": HI, "stream": True})
            assert events(stream.content)[-1]["error"]["code"] == "engine_dead"
            assert http.get("/health").json()["status"] == "dead"
        log = server.leave()
        assert "the engine has died" in log
        assert log.count("Traceback") == 1
        assert json.dumps(HI[0]["content"]) not in log
