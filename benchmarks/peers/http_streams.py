"""Streaming clients of servers with the OpenAI API: time to the first token, time between tokens, throughput."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np

from benchmarks.peers.llama_cpp import find_program
from benchmarks.peers.workload import Workload
from chatserve.models.cache_folder import cache_folder
from chatserve.models.default_model import fetch_default_model

_START_SECONDS = 600


@dataclass(slots=True)
class Streams:
    """What the clients of one round saw, in seconds.

    Attributes:
        first: from a request to its first token, one a client.
        gaps: between the tokens that followed.
        total: from the first request to the last token.
        num_tokens: tokens that all clients got.
    """

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    total: float = 0.0
    num_tokens: int = 0


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

    def run(self, workload: Workload, turn: int) -> Streams:
        """All requests of the workload at once, each answer a stream."""
        self._process.send_signal(signal.SIGCONT)
        try:
            return asyncio.run(_stream_all(self._url, workload, turn))
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


def stream_workloads(is_short: bool) -> list[Workload]:
    sizes = (1, 4) if is_short else (1, 8, 32)
    return [Workload(f"HTTP, {size} streams", "http", size, 128, 8 if is_short else 64) for size in sizes]


async def _stream_all(url: str, workload: Workload, turn: int) -> Streams:
    streams = Streams()
    limits = httpx.Limits(max_connections=workload.num_requests)
    async with httpx.AsyncClient(base_url=url, timeout=_START_SECONDS, limits=limits, trust_env=False) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        started = time.perf_counter()
        prompts = workload.prompts(turn)
        await asyncio.gather(*(_stream(client, model, prompt, workload.answer_len, streams) for prompt in prompts))
    streams.total = time.perf_counter() - started
    return streams


async def _stream(client: httpx.AsyncClient, model: str, prompt: list[int], num_tokens: int, streams: Streams) -> None:
    body = {"model": model, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0}
    body |= {"ignore_eos": True, "stream": True}
    started = last = time.perf_counter()
    is_first = True
    async with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            now = time.perf_counter()
            (streams.first if is_first else streams.gaps).append(now - (started if is_first else last))
            is_first, last = False, now
    streams.num_tokens += num_tokens


def stream_table(seen: dict[tuple[str, str], list[Streams]]) -> str:
    """A Markdown table of what was `seen`, by workload and server; the rate is the median of the rounds."""
    lines = [
        "| work | server | tok/s | first token, median / p99 ms | between tokens, p50 / p99 ms |",
        "|---|---|---|---|---|",
    ]
    for (title, name), rounds in seen.items():
        rate = statistics.median(each.num_tokens / each.total for each in rounds)
        first, gaps = (
            [1000 * second for each in rounds for second in getattr(each, part)] for part in ("first", "gaps")
        )
        cells = [f"{np.quantile(times, 0.5):.0f} / {np.quantile(times, 0.99):.0f}" for times in (first, gaps)]
        lines.append(f"| {title} | {name} | {rate:.1f} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines) + "\n"


def compare_streams(
    running: list[Server], workloads: list[Workload], num_rounds: int, tell: Callable[[str], None]
) -> dict[tuple[str, str], list[Streams]]:
    """Rounds of every workload in which the servers take turns; by workload and server."""
    seen: dict[tuple[str, str], list[Streams]] = {}
    for workload in workloads:
        for number in range(num_rounds):
            for server in running:
                streams = server.run(workload, number)
                seen.setdefault((workload.title, server.name), []).append(streams)
                tell(f"{workload.title}, round {number + 1}/{num_rounds}: {server.name} {streams.total:.2f} s")
    return seen
