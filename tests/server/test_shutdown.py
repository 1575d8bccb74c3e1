"""Ctrl-C and SIGTERM: the process drains, leaves with status 0 in time, and says nothing on the way."""

from __future__ import annotations

import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import Any

import httpx
import pytest

from chatserve.config import Config
from chatserve.errors import ConfigError
from chatserve.server import serve
from tests.server.harness import HI, events, make_engine, script, text_of
from tests.server.server_process import ServerProcess, letters, server_process

LIMIT = 15.0  # an idle machine needs a second more than the grace period, a busy one several times that


def running_server(delay: float, grace: float = 0.5) -> AbstractContextManager[ServerProcess]:
    """Its answers never end by themselves."""
    return server_process(delay=delay, shutdown_grace=grace, max_model_len=200_000, num_blocks=20_000)


def open_stream(server: ServerProcess, **fields: Any) -> socket.socket:
    return server.post({"messages": HI, "stream": True, **fields})


def leave(server: ServerProcess, number: int) -> None:
    assert server.leave(number, LIMIT) == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_open_stream_ends_with_an_error_event(number: int) -> None:  # case f5
    with running_server(delay=0.005) as server, open_stream(server) as connection:
        received = connection.recv(65536)
        assert received.startswith(b"HTTP/1.1 200")
        leave(server, number)
        while news := connection.recv(1 << 20):
            received += news
        assert b'"error"' in received
        assert b"data: [DONE]\n\n" in received


def test_a_client_that_does_not_read_holds_nothing_up() -> None:  # case f5
    flood = {"n": 64, "logprobs": True, "top_logprobs": 20}
    with running_server(delay=0.0) as server, open_stream(server, **flood) as connection:
        connection.recv(100)
        time.sleep(3)  # 64 choices fill the socket's buffers meanwhile
        leave(server, signal.SIGINT)
        received = b""
        with suppress(ConnectionResetError):
            while news := connection.recv(1 << 20):
                received = received[-20:] + news
        assert not received.endswith(b"data: [DONE]\n\n"), "the buffers were not full, so this test has shown nothing"


def test_a_whole_answer_in_progress_is_a_503() -> None:
    with running_server(delay=0.005) as server, open_stream(server, stream=False) as connection:
        time.sleep(0.3)
        leave(server, signal.SIGTERM)
        assert connection.recv(65536).startswith(b"HTTP/1.1 503")


def test_an_idle_connection_holds_nothing_up() -> None:
    with running_server(delay=0.0) as server, socket.create_connection(("127.0.0.1", server.port)):
        leave(server, signal.SIGINT)


@pytest.mark.parametrize(("stream", "step_seconds"), [(True, 0.005), (False, 0.005), (True, 3.0)])
def test_a_second_signal_cuts_everything_at_once_and_says_nothing(stream: bool, step_seconds: float) -> None:
    with running_server(delay=step_seconds, grace=60) as server:
        connections = [open_stream(server, stream=stream) for _ in range(4)]
        time.sleep(0.3)
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        leave(server, signal.SIGINT)
        for connection in connections:
            connection.close()


# Short ones may end within the grace period, long ones cannot, and those with many choices must wait for room.
LOAD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": HI, "stream": True, "max_tokens": 40}),
    ("/v1/chat/completions", {"messages": HI, "stream": True}),
    ("/v1/chat/completions", {"messages": HI, "stream": True, "n": 60}),
    ("/v1/chat/completions", {"messages": HI}),
    ("/v1/completions", {"prompt": "Hi", "stream": True, "max_tokens": 40}),
    ("/v1/completions", {"prompt": ["Hi", "Ho"], "stream": True, "max_tokens": 4000}),
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 40}),
]


def check_end(body: dict[str, Any], response: httpx.Response) -> bool:
    """Whether the answer is whole; otherwise it ends with the usual error."""
    prompt_len = 20 if "messages" in body else 2
    if response.status_code != 200:
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "draining"
        return False
    if not body.get("stream"):
        assert response.json()["choices"][0]["text"] == letters(prompt_len, body["max_tokens"])
        return True
    frames = events(response.content)
    if "error" in frames[-1]:
        assert frames[-1]["error"]["code"] == "draining"
        return False
    assert text_of(frames) == letters(prompt_len, body["max_tokens"])
    return True


def test_every_client_gets_its_answer_or_an_error() -> None:
    bodies = LOAD * 8
    with (
        server_process(delay=0.02, shutdown_grace=1.0, num_blocks=2000) as server,
        ThreadPoolExecutor(len(bodies)) as pool,
        httpx.Client(
            base_url=server.url, trust_env=False, timeout=60, limits=httpx.Limits(max_connections=100)
        ) as http,
    ):
        answers = [pool.submit(http.post, path, json=body) for path, body in bodies]
        while http.get("/health").json()["stats"]["tokens_published"] < 500:
            time.sleep(0.05)
        leave(server, signal.SIGTERM)
        whole = [check_end(body, answer.result(30)) for (_, body), answer in zip(bodies, answers, strict=True)]
    assert not all(whole), "all were so short that this test has shown nothing"


def test_an_address_in_use_is_a_configuration_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            serve(lambda: make_engine(script("x"))[0], Config(port=port))
