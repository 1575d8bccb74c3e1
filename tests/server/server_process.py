"""A server over a fake model in a process of its own, which a test may signal, kill and measure."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from chatserve.config import Config
from chatserve.engine import AsyncEngine
from chatserve.models.batch import Float32Array, Int32Array
from chatserve.server import serve
from chatserve.testing import VOCAB_SIZE
from tests.server.harness import ENGINE_SETTINGS, make_engine, script

_ROOT = Path(__file__).parents[2]


class Letters:
    """Logits that write a letter which depends on the position alone; needs no memory, and the answer never ends.

    At the length `dies_at` the thread is ended that asks for them.
    """

    vocab_size = VOCAB_SIZE

    def __init__(self, dies_at: int | None = None) -> None:
        self._dies_at = dies_at
        self._rows = np.full((26, VOCAB_SIZE), -30.0, np.float32)
        for letter in range(26):
            self._rows[letter, ord("a") + letter] = 0.0

    def __call__(self, context: Int32Array) -> Float32Array:
        if len(context) == self._dies_at:
            raise SystemExit("the thread ends here")
        row: Float32Array = self._rows[_letter(len(context))]
        return row


def letters(prompt_len: int, num_tokens: int) -> str:
    """The text that `Letters` writes behind a prompt of that many tokens."""
    return "".join(chr(ord("a") + _letter(prompt_len + i)) for i in range(num_tokens))


def _letter(position: int) -> int:
    return (7 * position + position // 26) % 26


@dataclass
class ServerProcess:
    """A running server."""

    process: subprocess.Popen[str]
    port: int
    stderr: IO[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])

    def post(self, body: dict[str, Any], path: str = "/v1/chat/completions") -> socket.socket:
        """A connection that has sent this and read nothing."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.sendall(post(body, path))
        return connection

    def resident_bytes(self) -> int:
        """Its resident memory now."""
        fields = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return 1024 * int(fields.split("VmRSS:")[1].split()[0])

    def leave(self, number: int = signal.SIGTERM, limit: float = 20.0) -> str:
        """Send the signal; the process must go within `limit` seconds, with status 0. What it wrote to stderr."""
        begun = time.monotonic()
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=limit + 5)
        assert time.monotonic() - begun < limit
        assert self.process.returncode == 0
        assert out == "left\n"
        self.stderr.seek(0)
        return self.stderr.read()


def post(body: dict[str, Any], path: str = "/v1/chat/completions") -> bytes:
    """A whole POST request."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


@contextmanager
def starting_process(port: int, **settings: Any) -> Iterator[ServerProcess]:
    """A server that may not listen yet, with settings as of `serve_fake` and `answer`, or `dies_at` of `Letters`;
    its model takes `load_seconds`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path])}
    command = [sys.executable, "-m", "tests.server.server_process", json.dumps({"port": port, **settings})]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as stderr:  # a pipe that nobody reads would fill up
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)
        try:
            yield ServerProcess(process, port, stderr)
        finally:
            process.kill()
            process.communicate()


@contextmanager
def server_process(**settings: Any) -> Iterator[ServerProcess]:
    """The same on a free port and ready."""
    with starting_process(0, **settings) as server:
        server.wait_until_ready()
        yield server


def main(settings: dict[str, Any]) -> None:
    answer, load_seconds = settings.pop("answer", None), settings.pop("load_seconds", 0)
    logits = Letters(settings.pop("dies_at", None)) if answer is None else script(answer)
    given = {name: settings.pop(name) for name in ENGINE_SETTINGS & settings.keys()}

    def load() -> AsyncEngine:
        time.sleep(load_seconds)
        return make_engine(logits, **given)[0]

    serve(load, Config(**{"shutdown_grace": 0.2, **settings}), on_ready=lambda url: print(url, flush=True))
    print("left", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
