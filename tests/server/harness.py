"""A real server on a free port over the real engine and a scripted model, with the real openai client in front."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import httpx
import openai
from openai.types.chat import ChatCompletionMessageParam

from chatserve.config import Config, Preemption
from chatserve.decoding.registry import Decoder, Registry
from chatserve.engine import AsyncEngine, Engine, EngineLimits
from chatserve.engine.building import build_engine
from chatserve.server.serving import DrainingServer
from chatserve.testing import (
    END_TOKEN_ID,
    VOCAB_SIZE,
    FakeRunner,
    LogitsFunction,
    RandomLogits,
    Script,
    byte_chat_template,
    byte_vocabulary,
)
from chatserve.text import Vocabulary
from chatserve.text.chat_template import ChatTemplate

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]
ARGUMENTS = '{"city": "Paris", "days": 2}'
CALL = '<tool_call>\n{"name": "weather", "arguments": ' + ARGUMENTS + "}\n</tool_call>"

ENGINE_SETTINGS = {
    *("delay", "num_blocks", "num_host_blocks", "preemption"),
    *("max_model_len", "max_queue", "extra_decoders", "vocabulary", "chat_template"),
}


def script(answer: str | bytes | Sequence[int]) -> Script:
    """The answer to any prompt, byte by byte."""
    data = answer.encode() if isinstance(answer, str) else answer
    return Script(list(data), vocab_size=VOCAB_SIZE, end_token_id=END_TOKEN_ID)


def make_engine(
    logits: LogitsFunction,
    *,
    delay: float = 0.0,
    num_blocks: int = 512,
    num_host_blocks: int = 0,
    preemption: Preemption = "auto",
    max_model_len: int = 4096,
    max_queue: int = 64,
    extra_decoders: Sequence[Decoder] = (),
    vocabulary: Vocabulary | None = None,
    chat_template: ChatTemplate | None = None,
) -> tuple[AsyncEngine, FakeRunner]:
    """The real engine over a fake model, with the installed decoders and more."""
    runner = FakeRunner(logits, delay=delay, max_model_len=max_model_len)
    registry = Registry.load()
    for added in extra_decoders:
        registry.add(added)
    limits = EngineLimits(num_blocks, num_host_blocks=num_host_blocks, preemption=preemption)
    engine = Engine(runner, vocabulary or byte_vocabulary(), registry, limits)
    return AsyncEngine(engine, chat_template or byte_chat_template(), max_queue), runner


@dataclass
class Served:
    """A running server and clients for it."""

    engine: AsyncEngine
    runner: FakeRunner
    host: str
    port: int
    http: httpx.Client
    openai: openai.OpenAI
    loop: asyncio.AbstractEventLoop

    def num_tasks(self) -> int:
        """Tasks on the server's loop, those of open connections among them."""
        return len(asyncio.all_tasks(self.loop))

    def chat(self, **fields: Any) -> httpx.Response:
        """A chat request with "Hi" as its message unless told otherwise."""
        return self.http.post("/v1/chat/completions", json={"messages": HI, **fields})

    def complete(self, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"prompt": "Hi", **fields})

    def connect(self, path: str, body: dict[str, Any]) -> socket.socket:
        """A raw connection that has sent a POST request and read nothing."""
        connection = socket.create_connection((self.host, self.port), timeout=10)
        payload = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n\r\n"
        connection.sendall(head.encode() + payload)
        return connection

    def stat(self, name: str) -> float:
        return self.engine.stats()[name]

    def is_idle(self) -> bool:
        """No request is left and every block is back."""
        return self.stat("requests_running") == self.stat("requests_waiting") == self.stat("blocks_used") == 0


@contextmanager
def serve_in_thread(engine: AsyncEngine, runner: FakeRunner, config: Config) -> Iterator[Served]:
    """Run the server in a thread, as `chatserve.server.serve` would in the main thread; drain it at the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        ready: Future[asyncio.AbstractEventLoop] = Future()
        server = DrainingServer(engine, config, on_ready=lambda url: ready.set_result(asyncio.get_running_loop()))
        thread = threading.Thread(target=asyncio.run, args=(server.serve(sockets=[listener]),))
        thread.start()
        loop = ready.result(10)
        url = f"http://{host}:{port}"
        with (
            httpx.Client(base_url=url, timeout=20, trust_env=False) as http,
            openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        ):
            try:
                yield Served(engine, runner, host, port, http, client, loop)
            finally:
                server.should_exit = True
                thread.join(10)
                assert not thread.is_alive()


@contextmanager
def serve_fake(answer: str | bytes | Sequence[int] | LogitsFunction = "Hello!", **settings: Any) -> Iterator[Served]:
    """Serve an answer or a logits function, with settings of the engine (as `make_engine`) and fields of Config."""
    logits = answer if callable(answer) else script(answer)
    given = {name: settings.pop(name) for name in ENGINE_SETTINGS & settings.keys()}
    config = Config(**{"shutdown_grace": 0.2, **settings})
    with serve_in_thread(*make_engine(logits, **given), config) as served:
        yield served


@contextmanager
def fake_servers() -> Iterator[Callable[..., Served]]:
    """Starts servers as `serve_fake` does; they end together."""
    with ExitStack() as stack:
        yield lambda *answer, **settings: stack.enter_context(serve_fake(*answer, **settings))


@contextmanager
def serve_random_model() -> Iterator[Served]:
    """A model that says anything: what it obeys, a grammar has made it obey."""
    with serve_fake(RandomLogits(VOCAB_SIZE, end_token_ids=(END_TOKEN_ID,), end_bias=4.0)) as served:
        yield served


@contextmanager
def serve_default_model() -> Iterator[Served]:
    config = Config(kv_memory=0.3)
    loaded, engine = build_engine(config)
    runner = cast(Any, loaded.runner)  # `Served` keeps it for tests of the fake model only
    with serve_in_thread(AsyncEngine(engine, loaded.chat_template), runner, config) as served:
        yield served


def eventually(condition: Callable[[], bool], seconds: float = 2.0) -> bool:
    """Whether the condition becomes true within that time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def events(stream: bytes) -> list[Any]:
    """A strict reading of an event stream: only comments, one-line JSON data, and ``[DONE]`` at the very end."""
    assert b"\r" not in stream
    assert stream.endswith(b"data: [DONE]\n\n")
    found = []
    for event in stream.removesuffix(b"data: [DONE]\n\n").split(b"\n\n")[:-1]:
        assert event.count(b"\n") == 0
        if event.startswith(b": "):
            continue
        assert event.startswith(b"data: {")
        assert event.endswith(b"}")
        assert not any(separator in event.decode() for separator in "\u2028\u2029\u0085")
        found.append(json.loads(event.removeprefix(b"data: ")))
    return found


def text_of(chunks: list[Any], choice: int = 0) -> str:
    """The joined text of one choice, of chat or legacy chunks."""
    pieces = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice]
    return "".join(piece["text"] if "text" in piece else piece["delta"].get("content", "") for piece in pieces)
