"""What a client may send and how long it may take, whatever the route: heads, bodies that nobody reads, stray bytes."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from chatserve.server.connection import MAX_HEAD_BYTES
from tests.server.harness import HI, Served, serve_fake

Start = Callable[..., Served]
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST /nowhere HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
SECONDS = 0.5


@pytest.fixture(scope="module")
def impatient() -> Iterator[Served]:
    with serve_fake("Hello!", body_timeout=SECONDS) as running:
        yield running


def connect(served: Served) -> socket.socket:
    return socket.create_connection((served.host, served.port), timeout=10)


def read_answer(connection: socket.socket) -> bytes:
    """One answer with a Content-Length; what has come behind it is dropped."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, body = received.split(b"\r\n\r\n", 1)
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body[:length]


def read_to_end(connection: socket.socket) -> bytes:
    received = b""
    try:
        while more := connection.recv(65536):
            received += more
    except ConnectionResetError:  # the server has closed with something of ours unread
        pass
    return received


def is_taken(connection: socket.socket, data: bytes) -> bool:
    """Send; False when the server has closed."""
    try:
        connection.sendall(data)
    except (ConnectionResetError, BrokenPipeError):
        return False
    return True


@pytest.mark.parametrize(
    ("request_", "later"),
    [
        (HEALTH + b"Content-Length: 10\r\n\r\n", b"a"),
        (HEALTH + b"Content-Length: 2\r\n\r\n", b"ab"),
        (HEALTH + b"Content-Length: 2\r\n\r\n", b"ab\r\n"),
        (HEALTH + b"\r\n", b"\r\n"),
        (HEALTH + b"\r\n", b"G"),
        (HEALTH + b"\r\n", HEALTH),
        (CHUNKED, b"1\r\na\r\n"),
        (CHUNKED, b"1"),
        (CHUNKED, b"1\r\na\r\n0\r\nX-Trailer: a"),
    ],
)
def test_no_connection_stays_half_open(impatient: Served, request_: bytes, later: bytes) -> None:
    with connect(impatient) as connection:
        connection.sendall(request_)
        started = time.monotonic()
        read_answer(connection)
        connection.sendall(later)
        assert read_to_end(connection) == b""
        assert time.monotonic() - started < 8 * SECONDS, "or uvicorn's own 5 seconds had to end it"


def test_bytes_now_and_then_buy_no_time(impatient: Served) -> None:
    with connect(impatient) as connection:
        connection.sendall(CHUNKED)
        read_answer(connection)
        started = time.monotonic()
        while is_taken(connection, b"1\r\na\r\n"):
            assert time.monotonic() - started < 8 * SECONDS
            time.sleep(SECONDS / 10)


def test_a_connection_that_is_used_stays_open(impatient: Served) -> None:
    with connect(impatient) as connection:
        for _ in range(4):
            time.sleep(SECONDS / 2)
            connection.sendall(HEALTH + b"\r\n")
            assert read_answer(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("later", [b"\r\n", HEALTH, HEALTH + b"Content-Length: 5\r\n\r\na"])
def test_an_answer_ends_before_its_client_is_cut_off_for_what_it_sends_next(start_server: Start, later: bytes) -> None:
    served = start_server("x" * 60, delay=0.02, body_timeout=0.3)
    with served.connect("/v1/chat/completions", {"messages": HI, "max_tokens": 60}) as connection:
        connection.sendall(later)
        first = read_answer(connection)
        assert json.loads(first.split(b"\r\n\r\n", 1)[1])["choices"][0]["message"]["content"] == "x" * 60
        read_to_end(connection)


def refused(answer: bytes) -> tuple[int, str]:
    head, body = answer.split(b"\r\n\r\n", 1)
    assert b"connection: close" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert str(MAX_HEAD_BYTES) in error["message"]
    return int(head.split()[1]), error["code"]


LONG_HEADER = b"X-Long: " + b"a" * MAX_HEAD_BYTES + b"\r\n"
MANY_HEADERS = b"".join(b"X-%04d: a\r\n" % i for i in range(MAX_HEAD_BYTES // 11 + 1))
LONG_URL = b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (HEALTH + LONG_HEADER + b"\r\n", (431, "headers_too_large")),
        (HEALTH + MANY_HEADERS + b"\r\n", (431, "headers_too_large")),
        (LONG_URL, (414, "uri_too_long")),
    ],
)
@pytest.mark.parametrize("piece", [1000, 1_000_000])
def test_heads_are_bounded(served: Served, data: bytes, expected: tuple[int, str], piece: int) -> None:
    with connect(served) as connection:
        for start in range(0, len(data), piece):
            is_taken(connection, data[start : start + piece])
        assert refused(read_to_end(connection)) == expected


def test_a_header_that_does_not_end(served: Served) -> None:
    """No megabytes of it are taken: the parser itself keeps a header until it is complete."""
    with connect(served) as connection:
        connection.sendall(HEALTH + b"X-Long: ")
        assert not all(is_taken(connection, b"a" * 100_000) for _ in range(1000))


def test_trailers_are_bounded(served: Served) -> None:
    with connect(served) as connection:
        connection.sendall(CHUNKED)
        read_answer(connection)
        connection.sendall(b"1\r\na\r\n0\r\n" + MANY_HEADERS + b"\r\n")
        assert refused(read_to_end(connection)) == (431, "headers_too_large")


@pytest.mark.parametrize("piece", [1000, 1_000_000])
def test_long_heads_within_the_bounds_are_fine(served: Served, piece: int) -> None:
    size = MAX_HEAD_BYTES // 2 - 200
    data = b"GET /health?" + b"a" * size + b" HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * size + b"\r\n\r\n"
    with connect(served) as connection:
        for _ in range(2):
            for start in range(0, len(data), piece):
                connection.sendall(data[start : start + piece])
            assert read_answer(connection).startswith(b"HTTP/1.1 200")
