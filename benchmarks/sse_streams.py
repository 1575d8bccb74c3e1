"""What 256 concurrent streams cost the event loop: the longest time it is blocked, and the cost of an event.

    python benchmarks/sse_streams.py [streams [tokens]]

A server over a model that costs nothing runs in a process of its own. A timer there fires every millisecond and reads
the CPU time of the loop's thread, so that other processes do not count (but they slow it down through shared caches and
cores): the most that passes between two readings bounds every single callback from above. The cost of an event is the
CPU time of that thread outside the engine's own work, divided by the events; parsing of the requests is part of it.
Normalised numbers are what it would be where an iteration of a bare loop takes 40 ns, as on a quiet machine; the loop
is timed on the same thread meanwhile. The goals are 50 ms and 40 us.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from chatserve.config import Config
from chatserve.decoding import Registry
from chatserve.engine import AsyncEngine, Engine, EngineLimits, sampler
from chatserve.server import serve
from chatserve.testing import VOCAB_SIZE, ConstantRunner, byte_chat_template, byte_vocabulary

NUM_STREAMS, NUM_TOKENS = 256, 200
QUIET_LOOP_NS = 40.0
_PROBE_SECONDS = 0.001
_LOOP_SECONDS = 0.05  # how often the bare loop is timed
_LOOP_ITERATIONS = 10_000


class LoopProbe:
    """CPU times of the event loop's thread. Its methods run on that thread.

    Attributes:
        longest: most CPU seconds between two readings.
        engine_seconds: CPU seconds inside the watched methods.
        bare_loops: CPU seconds of bare loops.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self.engine_seconds = 0.0
        self.bare_loops: list[float] = []
        self._first = self._last = 0.0

    def start(self) -> None:
        self._first = self._last = time.thread_time()
        self._read()
        self._time_bare_loop()

    def watched(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, with its time counted as the engine's."""

        def run(*arguments: Any) -> Any:
            begun = time.thread_time()
            try:
                return method(*arguments)
            finally:
                self.engine_seconds += time.thread_time() - begun

        return run

    def report(self) -> dict[str, float]:
        others = self.engine_seconds + sum(self.bare_loops)
        return {
            "longest": self.longest,
            "engine": self.engine_seconds,
            "rest": time.thread_time() - self._first - others,
            "scale": QUIET_LOOP_NS * 1e-9 * _LOOP_ITERATIONS / statistics.median(self.bare_loops),
        }

    def _read(self) -> None:
        now = time.thread_time()
        self.longest, self._last = max(self.longest, now - self._last), now
        asyncio.get_running_loop().call_later(_PROBE_SECONDS, self._read)

    def _time_bare_loop(self) -> None:
        begun, total = time.thread_time(), 0
        for number in range(_LOOP_ITERATIONS):
            total += number
        spent = time.thread_time() - begun
        self.bare_loops.append(spent)
        self._last += spent
        asyncio.get_running_loop().call_later(_LOOP_SECONDS, self._time_bare_loop)


class ProbedEngine(AsyncEngine):
    """Starts the probe with the first request, and prints what it saw when the server ends."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, byte_chat_template())
        self._probe = LoopProbe()
        self._has_started = False
        for name in ("submit", "begin_step", "end_step"):
            setattr(engine, name, self._probe.watched(getattr(engine, name)))

    async def submit(self, given: Any) -> Any:
        if not self._has_started:
            self._has_started = True
            self._probe.start()
        return await super().submit(given)

    async def shutdown(self, grace: float) -> None:
        print(json.dumps(self._probe.report()), flush=True)
        await super().shutdown(grace)


def run_server() -> None:
    row = np.full(VOCAB_SIZE, -30.0, np.float32)
    row[ord("x")] = 0.0

    def make_engine() -> AsyncEngine:
        sampler.warm_up(VOCAB_SIZE)
        limits = EngineLimits(20_000)
        return ProbedEngine(Engine(ConstantRunner(row), byte_vocabulary(), Registry.load(), limits))

    serve(make_engine, Config(port=0), on_ready=lambda url: print(url, flush=True))


async def read_stream(port: int, num_tokens: int) -> int:
    """The number of events of one streaming answer."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": num_tokens, "stream": True}
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + data)
    received = await reader.read()
    writer.close()
    assert received.count(b'"content":"x"') == num_tokens, received[-500:]
    return received.count(b"data: ")


async def read_streams(port: int, num_streams: int, num_tokens: int) -> int:
    return sum(await asyncio.gather(*(read_stream(port, num_tokens) for _ in range(num_streams))))


def main(num_streams: int = NUM_STREAMS, num_tokens: int = NUM_TOKENS) -> None:
    command = [sys.executable, __file__, "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().rsplit(":", 1)[1])
        asyncio.run(read_stream(port, num_tokens))  # warm up; the probe sees it too
        num_events = asyncio.run(read_streams(port, num_streams, num_tokens))
        server.terminate()
        found = json.loads(server.stdout.readline())
    show(num_streams, num_events, found)


def show(num_streams: int, num_events: int, found: dict[str, float]) -> None:
    scale = found["scale"]
    longest, server, engine = found["longest"] * 1e3, *(found[n] / num_events * 1e6 for n in ("rest", "engine"))
    print(f"{num_streams} streams, {num_events} events, a bare iteration took {QUIET_LOOP_NS / scale:.0f} ns")
    print(f"longest CPU time without a timer: {longest:.1f} ms, normalised {longest * scale:.1f} (goal: at most 50)")
    print(f"server: {server:.1f} us an event, normalised {server * scale:.1f} (goal: at most 40)")
    print(f"engine: {engine:.1f} us an event on the same thread, normalised {engine * scale:.1f}")


if __name__ == "__main__":
    run_server() if sys.argv[1:] == ["serve"] else main(*map(int, sys.argv[1:]))
