"""`RemoteModel`: a running server, spoken to over its OpenAI API."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException, HTTPResponse
from typing import Any

from chatserve.cli.wishes import Wishes
from chatserve.errors import GenerationError, RequestError, UnavailableError


class RemoteModel:
    """The first model of the server at `url`, such as ``http://127.0.0.1:8000``; a trailing ``/v1`` is allowed.

    Raises:
        UnavailableError: nobody answers there, or not in the OpenAI API.
        RequestError: the server refuses a request; the message is the server's.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self.name = str(self._get("/v1/models")["data"][0]["id"])

    def decoder_names(self) -> list[str]:
        return [info["name"] for info in self._get("/v1/decoders")["data"] if info["state"] == "ready"]

    def answer(self, messages: list[dict[str, str]], wishes: Wishes, show: Callable[[str], None]) -> None:
        """Answer a conversation; `show` gets the text as it comes. Leaving early closes the connection: it cancels."""
        body = {"model": self.name, "messages": messages, "stream": True, **wishes.sampling}
        if wishes.decoder is not None:
            body |= {"decoder": wishes.decoder, "decoder_params": wishes.decoder_params}
        with self._open("/v1/chat/completions", body) as response:
            for event in _events(response):
                if "error" in event:
                    raise GenerationError(event["error"]["message"])
                for choice in event["choices"]:
                    show(choice["delta"].get("content") or "")

    def close(self) -> None:
        """Nothing to close: each answer has a connection of its own."""

    def _get(self, path: str) -> Any:
        with self._open(path) as response:
            try:
                return json.load(response)
            except ValueError:
                raise UnavailableError(f"{self._url}{path} does not answer in the OpenAI API") from None

    def _open(self, path: str, body: dict[str, Any] | None = None) -> HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
            response: HTTPResponse = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            with error:
                raise RequestError(_message(error)) from None
        except (OSError, ValueError, HTTPException) as error:
            raise UnavailableError(f"{self._url} cannot be reached: {getattr(error, 'reason', error)}") from None
        return response


def _message(error: urllib.error.HTTPError) -> str:
    """The server's own words where it speaks the OpenAI API, else the status."""
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.url} answers {error.code} {error.reason}"


def _events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON of each ``data:`` line up to ``[DONE]``; comments and blank lines are skipped."""
    for line in response:
        data = line.removeprefix(b"data: ").strip()
        if not line.startswith(b"data: "):
            continue
        if data == b"[DONE]":
            return
        yield json.loads(data)
    raise GenerationError("the server closed the connection in the middle of the answer")
