"""The OpenAPI document tells the truth about the routes and the bodies, and its page shows it without loading more."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
from starlette.routing import Route

from chatserve.config import Config
from chatserve.server.app import create_app
from chatserve.server.bodies import ChatBody
from chatserve.server.openapi import OPERATIONS, openapi_document
from tests.server.harness import HI, Served, make_engine, script

DOCUMENT = openapi_document(needs_key=False)


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(inner) for inner in value.values()))
    if isinstance(value, list):
        return set().union(*(references(inner) for inner in value))
    return set()


def test_every_route_of_the_api_is_in_it_and_no_other() -> None:
    engine, _ = make_engine(script("x"))
    served = {
        (method.lower(), re.sub(r":path\}", "}", route.path))
        for route in create_app(engine, Config()).routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if route.path.startswith("/v1/") or route.path in ("/tokenize", "/detokenize", "/health", "/metrics")
    }
    told = {(operation.method, operation.path) for operation in OPERATIONS}
    assert {entry for entry in served if entry[0] != "head"} == told


def test_every_reference_leads_somewhere() -> None:
    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert references(DOCUMENT) <= known


def test_fields_and_ranges_come_from_what_is_checked(served: Served) -> None:
    fields = DOCUMENT["components"]["schemas"]["ChatBody"]["properties"]
    assert list(fields) == list(ChatBody.__struct_fields__)
    for name, field in fields.items():
        for part in field.get("anyOf", [field]):
            for bound, step in (("minimum", -1), ("maximum", 1)):
                if bound in part:
                    response = served.chat(**{name: part[bound] + step})
                    assert response.status_code == 400, (name, bound)
                    assert response.json()["error"]["param"] == name


@pytest.mark.parametrize("needs_key", [False, True])
def test_keys_are_told_of_where_they_are_needed(needs_key: bool) -> None:
    document = openapi_document(needs_key)
    assert ("security" in document) == needs_key
    assert ("401" in document["paths"]["/v1/models"]["get"]["responses"]) == needs_key
    health = document["paths"]["/health"]["get"]
    assert health["security"] == []
    assert "401" not in health["responses"]
    assert "servers" not in document


def test_over_http(served: Served) -> None:
    response = served.http.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    assert response.json() == msgspec.json.decode(msgspec.json.encode(DOCUMENT))
    for path, methods in response.json()["paths"].items():
        if "get" in methods and "{" not in path:
            assert served.http.get(path).status_code == 200
    assert served.chat(messages=HI).status_code == 200


class Links(HTMLParser):
    """Collects what a page would load or lead to, and its ids."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "link", "img", "iframe"):
            self.loaded.add(str(given))
        self.links.add(given.get("href") or "#")
        self.ids.add("#" + (given.get("id") or ""))


def test_the_page(served: Served) -> None:
    response = served.http.get("/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    found = Links()
    found.feed(response.text)
    assert found.loaded == set()
    assert found.links <= found.ids | {"openapi.json"}
    for operation in OPERATIONS:
        assert operation.path in response.text
    assert "temperature" in response.text
