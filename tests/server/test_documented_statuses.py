"""Whatever status a route answers with, ``/openapi.json`` tells of it; and of no status that none answers with."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator

import msgspec
import pytest

from chatserve.decoding import Rejected
from chatserve.errors import ChatserveError, QueueFullError
from chatserve.server.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from chatserve.server.connection import MAX_HEAD_BYTES
from chatserve.server.errors import failure_of
from chatserve.server.openapi import OPERATIONS, Operation, openapi_document
from chatserve.server.prefixes import PrefixBody
from chatserve.server.responses_bodies import ResponsesBody
from tests.server.harness import HI, Served, serve_fake

KEY = b"Authorization: Bearer secret\r\n"
DOCUMENT = openapi_document(needs_key=True)
VALID: dict[type[msgspec.Struct], dict[str, object]] = {
    ChatBody: {"messages": HI},
    CompletionBody: {"prompt": "Hi"},
    ResponsesBody: {"input": "Hi"},
    PrefixBody: {"name": "p", "text": "Hi"},
    TokenizeBody: {"prompt": "Hi"},
    DetokenizeBody: {"tokens": [1]},
}
TAKING = [operation for operation in OPERATIONS if operation.body is not None]


def name_of(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


def told(operation: Operation) -> set[int]:
    """The statuses that the document has for it."""
    return {int(status) for status in DOCUMENT["paths"][operation.path][operation.method]["responses"]}


@pytest.fixture(scope="module")
def impatient() -> Iterator[Served]:
    with serve_fake("Hello!", api_keys=("secret",), body_timeout=0.3, max_body_bytes=5000) as running:
        yield running


@pytest.fixture(scope="module")
def busy() -> Iterator[Served]:
    """Takes no requests, because its queue has no place."""
    with serve_fake("x" * 4000, api_keys=("secret",), delay=0.01, max_queue=0) as running:
        yield running


def status_of(served: Served, operation: Operation, *, query: str = "", headers: bytes = KEY, body: bytes = b"") -> int:
    """The status of a raw request, whose body may be shorter than its headers say."""
    path = re.sub(r"\{.*\}", "unknown", operation.path) + query
    line = f"{operation.method.upper()} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n".encode()
    if b"Content-Length" not in headers:
        headers += b"Content-Length: %d\r\n" % len(body)
    with socket.create_connection((served.host, served.port), timeout=10) as connection:
        connection.sendall(line + headers + b"\r\n" + body)
        return int(connection.makefile("rb").readline().split()[1])


def body_of(operation: Operation, **fields: object) -> bytes:
    assert operation.body is not None
    return json.dumps({**VALID[operation.body], **fields}).encode()


@pytest.mark.parametrize("operation", OPERATIONS, ids=name_of)
def test_refusals_before_any_route(impatient: Served, operation: Operation) -> None:
    long = "a" * MAX_HEAD_BYTES
    assert status_of(impatient, operation, query=f"?{long}") == 414
    assert status_of(impatient, operation, headers=f"X-Long: {long}\r\n".encode()) == 431
    assert status_of(impatient, operation, headers=b"no header\r\n") == 400
    assert {400, 414, 431, 500, 503} <= told(operation)
    assert (status_of(impatient, operation, headers=b"") == 401) == (401 in told(operation))


@pytest.mark.parametrize("operation", TAKING, ids=name_of)
def test_refusals_of_a_body(impatient: Served, operation: Operation) -> None:
    assert status_of(impatient, operation, body=b"{") == 400
    assert status_of(impatient, operation, headers=KEY + b"Content-Length: 5001\r\n") == 413
    assert status_of(impatient, operation, headers=KEY + b"Content-Length: 5\r\n") == 408
    assert {400, 408, 413} <= told(operation)


@pytest.mark.parametrize("operation", OPERATIONS, ids=name_of)
def test_what_is_not_there(impatient: Served, operation: Operation) -> None:
    if operation.body is None:
        status = status_of(impatient, operation)
    else:
        status = status_of(impatient, operation, body=body_of(operation, model="unknown"))
    assert (status == 404) == (404 in told(operation))
    assert status in told(operation)


@pytest.mark.parametrize("operation", TAKING, ids=name_of)
def test_a_full_queue(busy: Served, operation: Operation) -> None:
    status = status_of(busy, operation, body=body_of(operation))
    assert (status == 429) == (429 in told(operation))


@pytest.mark.parametrize("operation", TAKING, ids=name_of)
def test_an_answer_that_takes_too_long(start_server: Callable[..., Served], operation: Operation) -> None:
    served = start_server("x" * 4000, api_keys=("secret",), delay=0.01)
    status = status_of(served, operation, body=body_of(operation, timeout=0.1))
    assert (status == 504) == (504 in told(operation))


def test_health_says_in_its_own_words_that_it_is_not_ready(start_server: Callable[..., Served]) -> None:
    served = start_server()
    served.engine.status = "draining"
    response = served.http.get("/health")
    assert response.status_code == 503
    assert response.json()["status"] == "draining"
    responses = DOCUMENT["paths"]["/health"]["get"]["responses"]
    assert responses["503"]["content"] == responses["200"]["content"]
    assert responses["500"]["content"] != responses["200"]["content"]


def kinds_of(kind: type[ChatserveError]) -> list[type[ChatserveError]]:
    return [kind, *(deeper for inner in kind.__subclasses__() for deeper in kinds_of(inner))]


def test_every_kind_of_error_has_a_status_that_is_told() -> None:
    ours = [kind for kind in kinds_of(ChatserveError) if kind.__module__.startswith("chatserve.")]
    assert QueueFullError in ours
    statuses = {failure_of(Rejected("n", "broken") if kind is Rejected else kind("broken")).status for kind in ours}
    everything = set().union(*map(told, OPERATIONS))
    assert statuses <= everything
    of_http = {200, 401, 414, 431}  # provoked above
    assert everything == statuses | of_http
