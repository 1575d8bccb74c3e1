"""Clients that vanish or stall at random, and steady ones beside them: these are served right, and nothing is left."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from tests.server.harness import HI, eventually
from tests.server.server_process import ServerProcess, letters, post, server_process

NUM_STEADY = 6

# All of these would go on to the end of the context.
ENDLESS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": HI, "stream": True}),
    ("/v1/chat/completions", {"messages": HI, "stream": False}),
    ("/v1/chat/completions", {"messages": HI, "stream": True, "n": 3, "logprobs": True, "top_logprobs": 20}),
    ("/v1/chat/completions", {"messages": HI, "stream": True, "decoder": "beam", "decoder_params": {"width": 3}}),
    ("/v1/completions", {"prompt": ["Hi", "Ho"], "stream": True, "max_tokens": 3000}),
    ("/v1/responses", {"input": "Hi", "stream": True}),
]


async def vanish_or_stall(port: int, chance: random.Random, until: float) -> None:
    """One client after the other, until then: each sends all or a part, reads a little, waits a little, and goes."""
    while time.monotonic() < until:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2048)
        path, body = chance.choice(ENDLESS)
        request = post(body, path)
        try:
            writer.write(request[: chance.randrange(len(request))] if chance.random() < 0.2 else request)
            for _ in range(chance.randrange(4)):
                await asyncio.wait_for(reader.read(chance.choice([1, 100, 4000])), chance.uniform(0.01, 1.0))
            await asyncio.sleep(chance.choice([0.0, 0.05, 0.5, 3.0]))
        except (TimeoutError, ConnectionError):
            pass
        finally:
            writer.transport.abort() if chance.random() < 0.5 else writer.close()


async def read_steadily(url: str, chance: random.Random, until: float) -> int:
    """How many answers came, at least two; every one was complete and right."""
    num_answers = 0
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        while not num_answers or time.monotonic() < until:
            num_tokens = chance.randrange(1, 60)
            stream = await client.chat.completions.create(
                model="fake",
                messages=HI,
                max_tokens=num_tokens,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
            assert chunks[-2].choices[0].finish_reason == "length"
            usage = chunks[-1].usage
            assert usage is not None
            assert usage.completion_tokens == num_tokens
            assert text == letters(usage.prompt_tokens, num_tokens)
            whole = await client.completions.create(model="fake", prompt="Hi", max_tokens=num_tokens)
            assert whole.choices[0].text == letters(2, num_tokens)
            num_answers += 2
    return num_answers


async def disturb(server: ServerProcess, num_vanishing: int, seconds: float, seed: int) -> int:
    """The number of steady answers."""
    chance, until = random.Random(seed), time.monotonic() + seconds
    chances = [random.Random(chance.random()) for _ in range(num_vanishing + NUM_STEADY)]
    vanishing = asyncio.gather(*(vanish_or_stall(server.port, own, until) for own in chances[NUM_STEADY:]))
    steady = await asyncio.gather(*(read_steadily(server.url, own, until) for own in chances[:NUM_STEADY]))
    await vanishing
    return sum(steady)


def is_empty(server: ServerProcess) -> bool:
    """No request, sequence or used block is left."""
    stats = httpx.get(f"{server.url}/health", trust_env=False, timeout=300).json()["stats"]
    names = ("requests_running", "requests_waiting", "sequences", "blocks_used", "blocks_pinned")
    return not any(stats[name] for name in names)


@contextmanager
def serving() -> Iterator[ServerProcess]:
    with server_process(num_blocks=6000, max_model_len=4096, max_queue=1000, stall_timeout=1.0) as server:
        yield server
        assert "Traceback" not in server.leave()


def disturb_and_count(server: ServerProcess, num_vanishing: int, seconds: float, seed: int) -> int:
    """The number of steady answers; nothing else is left."""
    num_answers = asyncio.run(disturb(server, num_vanishing, seconds, seed))
    assert eventually(lambda: is_empty(server), 120)
    return num_answers


def test_some_seconds() -> None:
    with serving() as server:
        disturb_and_count(server, 40, 3, seed=1)


@pytest.mark.full
def test_a_minute_leaves_no_memory_behind() -> None:
    with serving() as server:
        disturb_and_count(server, 200, 20, seed=1)
        before = server.resident_bytes()
        num_answers = disturb_and_count(server, 200, 60, seed=2)
        after = server.resident_bytes()
        print(f"{num_answers} steady answers, resident memory {before / 2**20:.0f} and {after / 2**20:.0f} MiB")
        assert after < 1.05 * before
