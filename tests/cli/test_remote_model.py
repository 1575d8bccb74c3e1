"""`chat --url` against a scripted HTTP server that speaks, or garbles, the OpenAI API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from chatserve.cli.remote_model import RemoteModel
from chatserve.cli.wishes import Wishes
from chatserve.config import Config
from chatserve.errors import GenerationError, RequestError, UnavailableError
from tests.server.harness import make_engine, script, serve_in_thread

MESSAGES = [{"role": "user", "content": "hi"}]


def chunk(content: str | None = None, **delta: str) -> str:
    fields = delta if content is None else {**delta, "content": content}
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}) + "\n\n"


class Handler(BaseHTTPRequestHandler):
    """Serves one model; answers chats with `frames`, or with `refusal` as a status."""

    frames: ClassVar[str] = ""
    refusal: ClassVar[tuple[int, bytes] | None] = None
    bodies: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        answers: dict[str, list[dict[str, Any]]] = {
            "/v1/models": [{"id": "some/model"}, {"id": "other"}],
            "/v1/decoders": [{"name": "greedy", "state": "ready"}, {"name": "bad", "state": "broken"}],
        }
        self._send(200, json.dumps({"data": answers[self.path]}).encode())

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._send(*(self.refusal or (200, self.frames.encode())))

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keeps quiet."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Handler, "bodies", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http_server:
        thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http_server.server_port}"
        http_server.shutdown()
        thread.join()


def answer(url: str, wishes: Wishes | None = None) -> str:
    pieces: list[str] = []
    RemoteModel(url).answer(MESSAGES, wishes or Wishes(), pieces.append)
    return "".join(pieces)


def test_the_answer_is_put_together_from_the_stream(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [
        ": keep-alive\n\n",
        chunk("", role="assistant"),
        chunk("Grü"),
        chunk("ße\u2028!"),
        chunk(),
        "data: [DONE]\n\n",
    ]
    monkeypatch.setattr(Handler, "frames", "".join(frames))
    assert answer(server) == "Grüße\u2028!"
    assert answer(server + "/v1/") == "Grüße\u2028!"


def test_the_request_carries_the_wishes(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "frames", "data: [DONE]\n\n")
    answer(server, Wishes("beam", {"width": 4}, {"temperature": 0.0, "stop": ("a",)}))
    expected = {"model": "some/model", "messages": MESSAGES, "stream": True, "temperature": 0.0, "stop": ["a"]}
    assert Handler.bodies == [expected | {"decoder": "beam", "decoder_params": {"width": 4}}]


def test_only_ready_decoders_are_offered(server: str) -> None:
    assert RemoteModel(server).decoder_names() == ["greedy"]


def test_a_refusal_is_told_in_the_server_s_words(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "refusal", (400, b'{"error": {"message": "too long", "type": "x"}}'))
    with pytest.raises(RequestError, match="^too long$"):
        answer(server)


def test_a_refusal_by_something_else_is_told_by_its_status(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "refusal", (502, b"<html>"))
    with pytest.raises(RequestError, match="chat/completions answers 502 Bad Gateway$"):
        answer(server)


def test_an_error_in_the_middle_is_raised_after_the_text_before_it(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = chunk("a") + 'data: {"error": {"message": "broke", "code": null}}\n\ndata: [DONE]\n\n'
    monkeypatch.setattr(Handler, "frames", frames)
    pieces: list[str] = []
    with pytest.raises(GenerationError, match="^broke$"):
        RemoteModel(server).answer(MESSAGES, Wishes(), pieces.append)
    assert pieces == ["a"]


def test_a_stream_without_its_end_is_an_error(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "frames", chunk("a"))
    with pytest.raises(GenerationError, match="closed the connection"):
        answer(server)


def test_a_real_server_is_understood() -> None:
    engine, runner = make_engine(script("Grüße\u2028aus Wien!"))
    with serve_in_thread(engine, runner, Config()) as served:
        url = f"http://{served.host}:{served.port}"
        assert answer(url, Wishes("greedy", {}, {"max_tokens": 100})) == "Grüße\u2028aus Wien!"
        assert {"greedy", "sampling"} <= set(RemoteModel(url).decoder_names())
        with pytest.raises(RequestError, match="nope"):
            answer(url, Wishes("nope"))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "http://[::"])
def test_an_address_without_a_server_is_an_error(url: str) -> None:
    with pytest.raises(UnavailableError, match="cannot be reached"):
        RemoteModel(url)
