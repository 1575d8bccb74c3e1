"""``GET /openapi.json`` and ``GET /docs``: the OpenAPI document, and a page made of it that loads nothing else."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from chatserve.server.openapi import openapi_document
from chatserve.server.responses import json_response

PATHS = ("/openapi.json", "/docs")

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code { font: 0.9em ui-monospace, monospace }
summary { cursor: pointer; padding: 0.4rem 0 }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: 0.2rem 0.8rem 0.2rem 0; border-bottom: 1px solid #8884 }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class DocumentationRoutes:
    """The document and its page, made once."""

    def __init__(self, *, needs_key: bool, root_path: str) -> None:
        self._document = openapi_document(needs_key, root_path)
        self._page = page(self._document)

    def routes(self) -> list[Route]:
        return [Route("/openapi.json", self.document), Route("/docs", self.show)]

    async def document(self, request: Request) -> Response:
        return json_response(self._document)

    async def show(self, request: Request) -> Response:
        return HTMLResponse(self._page, headers=_HEADERS)


def page(document: dict[str, Any]) -> str:
    """An OpenAPI document as HTML: operations first, then the schemas they refer to."""
    info = document["info"]
    operations = [
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [_schema(name, schema) for name, schema in document["components"]["schemas"].items()]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(info["title"])}: API</title>'
        f"<style>{_STYLE}</style>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])}</p>"
        f'<p>Machines read the same as <a href="openapi.json">openapi.json</a>.</p>'
        f"<h2>Operations</h2>{''.join(operations)}<h2>Schemas</h2>{''.join(schemas)}</html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    body = operation.get("requestBody")
    taken = f"<p>Body: {_type(body['content']['application/json']['schema'])}</p>" if body else ""
    rows = [
        f"<tr><td>{escape(status)}<td>{escape(answer['description'])}<td>{escape(', '.join(answer['content']))}"
        for status, answer in operation["responses"].items()
    ]
    heading = f"<code>{escape(method.upper())} {escape(path)}</code> {escape(operation['summary'])}"
    return f"<details><summary>{heading}</summary>{taken}<table>{''.join(rows)}</table></details>"


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = [
        f"<tr><td><code>{escape(field)}</code>{' (needed)' if field in required else ''}"
        f"<td>{_type(given)}<td>{escape(given.get('description', ''))}"
        for field, given in schema.get("properties", {}).items()
    ]
    text = escape(schema.get("description", "").replace("``", ""))
    return f'<h3 id="{escape(name)}">{escape(name)}</h3><p>{text}</p><table>{"".join(rows)}</table>'


def _type(schema: dict[str, Any]) -> str:
    """A field's type in words, with its range; null, which means absent, is left out."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"] if part != {"type": "null"})
    kind = schema.get("type", "anything")
    words = kind if isinstance(kind, str) else " or ".join(kind)
    if isinstance(schema.get("items"), dict):
        return f"list of {_type(schema['items'])}{_range(schema)}"
    return escape(words) + _range(schema)


def _range(schema: dict[str, Any]) -> str:
    words = {
        "minimum": "from",
        "exclusiveMinimum": "above",
        "maximum": "to",
        "minItems": "at least",
        "maxItems": "at most",
        "minLength": "at least",
        "maxLength": "at most",
    }
    given = [f"{word} {schema[key]}" for key, word in words.items() if key in schema]
    return f" ({', '.join(given)})" if given else ""
