"""How long a short prompt waits for its first token while long prompts are being read."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import numpy as np

from benchmarks.peers.servers import Server

LONG_LEN, SHORT_LEN, NUM_LONG_CLIENTS, SECONDS_BETWEEN = 1500, 24, 2, 1.0
_TIMEOUT = 600


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Seconds to the first token of each short prompt and of each long one."""

    server: str
    short: list[float]
    long: list[float]


def measure_first_tokens(running: list[Server], num_short: int, tell: Callable[[str], None]) -> list[FirstTokens]:
    """Two clients send prompts of 1500 tokens one after the other, all different; beside them short prompts of 24
    tokens arrive at random, on average one a second."""
    results = []
    for server in running:
        with server.turn() as url:
            result = FirstTokens(server.name, *asyncio.run(_send(url, num_short)))
        tell(f"short prompts beside long ones: {server.name} {_describe(result.short)}")
        results.append(result)
    return results


def first_token_table(results: list[FirstTokens]) -> str:
    """A Markdown table."""
    lines = [
        "| server | short prompts beside long ones, median / p99 ms | p99 / median | long, median / p99 ms |",
        "|---|---|---|---|",
    ]
    for result in results:
        ratio = np.quantile(result.short, 0.99) / np.median(result.short)
        lines.append(f"| {result.server} | {_describe(result.short)} | {ratio:.2f} | {_describe(result.long)} |")
    return "\n".join(lines) + "\n"


def _describe(times: list[float]) -> str:
    return f"{1000 * np.median(times):.0f} / {1000 * np.quantile(times, 0.99):.0f}" if times else "-"


async def _send(url: str, num_short: int) -> tuple[list[float], list[float]]:
    draws = random.Random(1)
    first_of_long: list[float] = []
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT, trust_env=False) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]

        async def read_long_ones() -> None:
            while True:
                first_of_long.append(await _first_token(client, model, _prompt(draws, LONG_LEN)))

        long = [asyncio.create_task(read_long_ones()) for _ in range(NUM_LONG_CLIENTS)]
        short = []
        for _ in range(num_short):
            await asyncio.sleep(draws.expovariate(1 / SECONDS_BETWEEN))
            short.append(asyncio.create_task(_first_token(client, model, _prompt(draws, SHORT_LEN))))
        first_of_short = await asyncio.gather(*short)
        for task in long:
            task.cancel()
        for ended in await asyncio.gather(*long, return_exceptions=True):
            if not isinstance(ended, asyncio.CancelledError):
                raise RuntimeError(f"a long prompt failed: {ended!r}")
    return first_of_short, first_of_long


def _prompt(draws: random.Random, length: int) -> list[int]:
    return [draws.randrange(1000, 40_000) for _ in range(length)]


async def _first_token(client: httpx.AsyncClient, model: str, token_ids: list[int]) -> float:
    """Seconds until the first token of a streamed answer; the rest is read, too."""
    body = {"model": model, "prompt": token_ids, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "stream": True}
    started, first = time.perf_counter(), 0.0
    async with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                first = first or time.perf_counter() - started
    return first
