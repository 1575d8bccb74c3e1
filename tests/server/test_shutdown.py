"""Ctrl-C and SIGTERM: the process drains, leaves with status 0 in time, and says nothing on the way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from chatserve.config import Config
from chatserve.errors import ConfigError
from chatserve.server import serve
from tests.server.harness import HI, make_engine, script

GRACE = 0.5
LIMIT = 15.0  # an idle machine needs a second more than the grace period, a busy one several times that

PROGRAM = """
from chatserve.config import Config
from chatserve.server import serve
from tests.server.harness import make_engine, script

def make():
    engine, runner = make_engine(script("x" * 100_000), max_model_len=200_000, num_blocks=20_000, delay=DELAY)
    return engine

serve(make, Config(port=0, shutdown_grace=GRACE), on_ready=lambda url: print(url, flush=True))
print("left", flush=True)
"""


@contextmanager
def running_server(delay: float, grace: float = GRACE) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server process and its port; its answers never end by themselves."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("DELAY", str(delay)).replace("GRACE", str(grace))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline().rsplit(":", 1)[1])
    finally:
        process.kill()
        process.communicate()


def open_stream(port: int, **fields: object) -> socket.socket:
    body = json.dumps({"messages": HI, "stream": True, **fields}).encode()
    connection = socket.create_connection(("127.0.0.1", port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def leave(process: subprocess.Popen[str], number: int) -> None:
    """Send the signal; the process must go in time, cleanly."""
    begun = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert out == "left\n"
    assert err == ""
    assert time.monotonic() - begun < LIMIT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_open_stream_ends_with_an_error_event(number: int) -> None:
    with running_server(delay=0.005) as (process, port), open_stream(port) as connection:
        received = connection.recv(65536)
        assert received.startswith(b"HTTP/1.1 200")
        leave(process, number)
        while news := connection.recv(1 << 20):
            received += news
        assert b'"error"' in received
        assert b"data: [DONE]\n\n" in received


def test_a_client_that_does_not_read_holds_nothing_up() -> None:
    flood = {"n": 64, "logprobs": True, "top_logprobs": 20}
    with running_server(delay=0.0) as (process, port), open_stream(port, **flood) as connection:
        connection.recv(100)
        time.sleep(3)  # 64 choices fill the socket's buffers meanwhile
        leave(process, signal.SIGINT)
        received = b""
        with suppress(ConnectionResetError):
            while news := connection.recv(1 << 20):
                received = received[-20:] + news
        assert not received.endswith(b"data: [DONE]\n\n"), "the buffers were not full, so this test has shown nothing"


def test_a_whole_answer_in_progress_is_a_503() -> None:
    with running_server(delay=0.005) as (process, port), open_stream(port, stream=False) as connection:
        time.sleep(0.3)
        leave(process, signal.SIGTERM)
        assert connection.recv(65536).startswith(b"HTTP/1.1 503")


def test_an_idle_connection_holds_nothing_up() -> None:
    with running_server(delay=0.0) as (process, port), socket.create_connection(("127.0.0.1", port)):
        leave(process, signal.SIGINT)


@pytest.mark.parametrize("stream", [True, False])
def test_a_second_signal_cuts_everything_at_once_and_says_nothing(stream: bool) -> None:
    with running_server(delay=0.005, grace=60) as (process, port):
        connections = [open_stream(port, stream=stream) for _ in range(4)]
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        leave(process, signal.SIGINT)
        for connection in connections:
            connection.close()


def test_an_address_in_use_is_a_configuration_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            serve(lambda: make_engine(script("x"))[0], Config(port=port))
