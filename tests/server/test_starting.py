"""While the model is being loaded: the server says so and refuses everything else; loading can be interrupted."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import httpx
import openai
import pytest

from chatserve.config import Config
from chatserve.engine import AsyncEngine
from chatserve.errors import ModelLoadError
from chatserve.server import serve
from tests.server.harness import HI
from tests.server.server_process import starting_process


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def while_loading(look: Callable[[httpx.Client], None], **settings: object) -> None:
    """Look at a server whose model never comes."""
    port = free_port()

    def load() -> AsyncEngine:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=20) as client:
            look(client)
        raise ModelLoadError("that is all")

    with pytest.raises(ModelLoadError, match="that is all"):
        serve(load, Config(port=port, model="a/b", **settings))  # type: ignore[arg-type]


def test_health() -> None:
    def look(client: httpx.Client) -> None:
        for _ in range(2):
            health = client.get("/health")
            assert health.status_code == 503
            assert health.json() == {"status": "starting", "model": "a/b", "stats": {}}

    while_loading(look)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("path", ["/", "/v1/models", "/v1/chat/completions", "/metrics", "/no/such/route"])
def test_everything_else_is_refused_for_now(method: str, path: str) -> None:
    def look(client: httpx.Client) -> None:
        response = client.request(method, path)
        assert response.status_code == 503
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == "starting"
        assert int(response.headers["retry-after"]) > 0
        assert "x-should-retry" not in response.headers
        assert response.headers["x-request-id"]

    while_loading(look)


def test_keys_are_asked_for() -> None:
    def look(client: httpx.Client) -> None:
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers={"Authorization": "Bearer key"}).status_code == 503
        assert client.get("/health").json()["status"] == "starting"

    while_loading(look, api_keys=("key",))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ModelLoadError("broken")])
def test_what_ends_the_loading_ends_the_server(error: BaseException) -> None:
    port = free_port()

    def load() -> AsyncEngine:
        raise error

    with pytest.raises(type(error) if isinstance(error, Exception) else KeyboardInterrupt):
        serve(load, Config(port=port))
    assert not [thread for thread in threading.enumerate() if thread.name == "chatserve-starting"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_client_that_sends_half_a_request_holds_nothing_up() -> None:
    connections = []

    def look(client: httpx.Client) -> None:
        for part in (b"", b"POST /v1/chat/completions HTTP/1.1\r\n"):
            connection = socket.create_connection(("127.0.0.1", client.base_url.port or 0))
            connection.sendall(part)
            connections.append(connection)

    begun = time.monotonic()
    while_loading(look)
    assert time.monotonic() - begun < 10, "a head may take 30 s"
    for connection in connections:
        connection.close()


def test_a_client_that_has_just_connected_is_answered() -> None:
    """It sends its request when the loading is over already."""
    connections = []

    def look(client: httpx.Client) -> None:
        connections.append(socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=10))
        assert client.get("/health").status_code == 503  # by now the one before has been accepted
        threading.Timer(0.1, connections[0].sendall, [b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"]).start()

    while_loading(look)
    assert connections[0].recv(65536).startswith(b"HTTP/1.1 503 ")
    connections[0].close()


def test_no_connection_is_refused_between_starting_and_ready() -> None:
    port = free_port()
    seen: list[str] = []
    with starting_process(port, load_seconds=1, answer="Hello!") as server:
        with httpx.Client(base_url=server.url, trust_env=False, timeout=30) as client:
            while not seen or seen[-1] == "starting":
                try:
                    seen.append(client.get("/health").json()["status"])
                except httpx.ConnectError:
                    assert not seen
                    time.sleep(0.05)
        server.wait_until_ready()
        assert seen[-2:] == ["starting", "ready"]
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as openai_client:
            answer = openai_client.chat.completions.create(model="fake", messages=HI)
        assert answer.choices[0].message.content == "Hello!"
        assert server.leave() == ""
