"""`Server`: a server with the OpenAI API in a process of its own; `servers`, those that are compared."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.peers.llama_cpp import find_program
from chatserve.models.cache_folder import cache_folder
from chatserve.models.default_model import fetch_default_model

_START_SECONDS = 600


class Server:
    """A server in a process of its own, stopped while others are measured.

    Args:
        name: of the engine.
        command: to start it; it prints its URL, or serves at `url`.
        url: where it serves, when it does not say so.
    """

    def __init__(self, name: str, command: list[str], url: str | None = None) -> None:
        self.name = name
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._url = url or self._read_url()
        self._wait_until_ready()
        self._process.send_signal(signal.SIGSTOP)

    @contextmanager
    def turn(self) -> Iterator[str]:
        """Let the server run for as long as the block takes; gives its URL."""
        self._process.send_signal(signal.SIGCONT)
        try:
            yield self._url
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read_url(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.search(r"http://[\w.:]+", line):
                return found[0]
        raise RuntimeError(f"{self.name}: the server ended before it served")

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            try:
                if httpx.get(f"{self._url}/health", trust_env=False).is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        raise RuntimeError(f"{self.name}: not ready after {_START_SECONDS} s")


def servers(llama_folder: Path | None, tell: Callable[[str], None]) -> list[Server]:
    """Ours, and llama.cpp's where its server is there."""
    found = [Server("chatserve", [sys.executable, "-m", "chatserve", "serve", "--port", "0"])]
    binary = find_program("llama-server", llama_folder)
    if binary is None:
        tell("skipped llama.cpp over HTTP: llama-server is not there: python -m benchmarks.peers install llama.cpp")
        return found
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model, threads = str(fetch_default_model(cache_folder())), str(len(os.sched_getaffinity(0)))
    command = [binary, "-m", model, "--port", str(port), "-t", threads, "-np", "32", "-c", "16384"]
    return [*found, Server("llama.cpp", command, f"http://127.0.0.1:{port}")]
