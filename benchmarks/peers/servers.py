"""`Server`: a server with the OpenAI API in a process of its own; `servers`, those that are compared."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.peers.llama_cpp import find_program
from benchmarks.peers.peer import signal_all
from chatserve.models.cache_folder import cache_folder
from chatserve.models.default_model import fetch_default_model

_START_SECONDS = 600
_POLL_SECONDS = 0.1
_MUCH = 1 << 20


class Server:
    """A server in a process of its own, stopped while others are measured.

    Args:
        name: of the engine.
        command: to start it; it prints its URL, or serves at `url`.
        url: where it serves, when it does not say so.

    Attributes:
        start_seconds: from its start until it was ready.
    """

    def __init__(self, name: str, command: list[str], url: str | None = None) -> None:
        self.name = name
        started = time.monotonic()
        # A pipe that nobody reads would fill up and stop the server.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True)
        self._url = url or self._read_url()
        self._wait_until_ready()
        self.start_seconds = time.monotonic() - started
        signal_all(self._process, signal.SIGSTOP)

    @contextmanager
    def turn(self) -> Iterator[str]:
        """Let the server run for as long as the block takes; gives its URL."""
        signal_all(self._process, signal.SIGCONT)
        try:
            yield self._url
        finally:
            signal_all(self._process, signal.SIGSTOP)

    def peak_memory(self) -> int:
        """Bytes of main memory that it held at most, as Linux counts them, used KV included."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        return 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", status)[1])

    def close(self) -> None:
        signal_all(self._process, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _read_url(self) -> str:
        while True:
            has_ended = self._process.poll() is not None
            logged = os.pread(self._log.fileno(), _MUCH, 0)  # reading would move the place where the server writes
            if found := re.search(rb"http://[\w.:]+", logged):
                return found[0].decode()
            if has_ended:
                raise RuntimeError(f"{self.name}: the server ended before it served")
            time.sleep(_POLL_SECONDS)

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            try:
                if httpx.get(f"{self._url}/health", trust_env=False).is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(_POLL_SECONDS)
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
    command = [binary, "-m", model, "--port", str(port), "-t", threads, "-np", "32", "-c", "16384", "-kvu"]
    return [*found, Server("llama.cpp", command, f"http://127.0.0.1:{port}")]


def server_table(running: list[Server]) -> str:
    """A Markdown table of what the servers take, after they were measured."""
    rows = [f"| {each.name} | {each.start_seconds:.1f} | {each.peak_memory() / 1e6:.0f} |" for each in running]
    return "\n".join(["| server | ready after s | most memory, MB |", "|---|---|---|", *rows]) + "\n"
