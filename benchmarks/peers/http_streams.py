"""Streaming clients of each server: time to the first token, time between tokens, throughput."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np

from benchmarks.peers.servers import Server
from benchmarks.peers.workload import Workload

_TIMEOUT = 600


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


def stream_workloads(is_short: bool) -> list[Workload]:
    sizes = (1, 4) if is_short else (1, 8, 32)
    return [Workload(f"HTTP, {size} streams", "http", size, 128, 8 if is_short else 64) for size in sizes]


async def _stream_all(url: str, workload: Workload, turn: int) -> Streams:
    streams = Streams()
    limits = httpx.Limits(max_connections=workload.num_requests)
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT, limits=limits, trust_env=False) as client:
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
        first, gaps = (
            [1000 * second for each in rounds for second in getattr(each, part)] for part in ("first", "gaps")
        )
        cells = [f"{np.quantile(times, 0.5):.0f} / {np.quantile(times, 0.99):.0f}" for times in (first, gaps)]
        lines.append(f"| {title} | {name} | {_rate(rounds):.1f} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines) + "\n"


def compare_streams(
    running: list[Server], workloads: list[Workload], num_rounds: int, tell: Callable[[str], None]
) -> dict[tuple[str, str], list[Streams]]:
    """Rounds of every workload in which the servers take turns; by workload and server."""
    seen: dict[tuple[str, str], list[Streams]] = {}
    for workload in workloads:
        for number in range(num_rounds):
            for server in running:
                with server.turn() as url:
                    streams = asyncio.run(_stream_all(url, workload, number))
                seen.setdefault((workload.title, server.name), []).append(streams)
                tell(f"{workload.title}, round {number + 1}/{num_rounds}: {server.name} {streams.total:.2f} s")
    return seen


def plot_streams(seen: dict[tuple[str, str], list[Streams]], folder: Path) -> Path:
    """Draw the rates, medians of the rounds, as ``streams.png``; returns the file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    titles, names = (list(dict.fromkeys(part)) for part in zip(*seen, strict=True))
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        rates = [_rate(seen[title, name]) for title in titles]
        axes.bar([number + place * width for number in range(len(titles))], rates, width, label=name)
    axes.set_xticks([number + 0.4 - width / 2 for number in range(len(titles))], titles)
    axes.set_ylabel("tokens a second, median")
    axes.legend()
    path = folder / "streams.png"
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _rate(rounds: list[Streams]) -> float:
    return statistics.median(each.num_tokens / each.total for each in rounds)
