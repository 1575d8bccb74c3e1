"""schemathesis reads ``/openapi.json`` and tries every operation, with data that keep to the document and that do not.

It checks what the document promises: statuses, media types, the body of every error. Nothing may be a server error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import BaseSchema, Case, GenerationMode

from chatserve.server.openapi import OPERATIONS
from tests.server.harness import Served, serve_fake

# Where there is no body, nothing can be wrong.
PLACES = [
    (operation.path, operation.method, mode)
    for operation in OPERATIONS
    for mode in ([GenerationMode.POSITIVE, GenerationMode.NEGATIVE] if operation.body else [GenerationMode.POSITIVE])
]
schemathesis.checks.load_all_checks()
CHECKS: list[Any] = schemathesis.checks.CHECKS.get_by_names(
    [
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
    ]
)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """Answers are short whatever a body asks for, since the model has little room."""
    with serve_fake("Hi <tool_call>", num_blocks=400, max_model_len=96) as running:
        yield running


@pytest.fixture(scope="module")
def document(server: Served) -> BaseSchema:
    return schemathesis.openapi.from_url(f"{server.http.base_url}/openapi.json")


def check(case: Case[Any]) -> None:
    response = case.call()
    case.validate_response(response, checks=CHECKS)
    if response.status_code >= 400:
        check_error(response.json()["error"], response.status_code)
    elif response.headers["content-type"][0].startswith("text/event-stream"):
        for frame in re.findall('data: ({"error".*)', response.text):
            check_error(json.loads(frame)["error"], 500)


def check_error(error: dict[str, Any], status: int) -> None:
    assert set(error) == {"message", "type", "param", "code"}
    assert status < 500 or error["code"] == "deadline_exceeded", error  # a timeout that the body has asked for


def try_operation(document: BaseSchema, path: str, method: str, mode: GenerationMode, count: int) -> None:
    @settings(max_examples=count, suppress_health_check=list(HealthCheck))
    @given(case=document[path][method].as_strategy(mode))
    def try_cases(case: Case[Any]) -> None:
        check(case)

    try_cases()


@pytest.mark.parametrize(("path", "method", "mode"), PLACES)
def test_each_operation(document: BaseSchema, path: str, method: str, mode: GenerationMode) -> None:
    try_operation(document, path, method, mode, 5)


@pytest.mark.full
@pytest.mark.parametrize(("path", "method", "mode"), PLACES)
def test_each_operation_at_length(document: BaseSchema, path: str, method: str, mode: GenerationMode) -> None:
    try_operation(document, path, method, mode, 500)
