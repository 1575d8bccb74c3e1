"""Sixteen concurrent HTTP streams of 128 + 64 tokens against one static transformers batch of sixteen.

    python benchmarks/http_throughput.py [rounds [flags of chatserve serve]]

Both sides run in turn in the same process tree on the default model: chatserve as it serves it (``--dtype float32`` for
the very weights and matrix products that transformers uses), transformers in float32. The medians and their ratio are
printed. The goal is a ratio of at least 1.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

NUM_STREAMS, PROMPT_LEN, ANSWER_LEN = 16, 128, 64


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with serving() as (url, server):
        asyncio.run(stream_all(url))  # warm both up once
        model = load_transformers()
        static_batch(model)
        ours, theirs = [], []
        for number in range(rounds):
            ours.append(timed(lambda: asyncio.run(stream_all(url))))
            os.kill(server.pid, 19)  # SIGSTOP: an idle server must not take part in the other side's time
            theirs.append(timed(lambda: static_batch(model)))
            os.kill(server.pid, 18)  # SIGCONT
            print(f"round {number + 1}: chatserve {ours[-1]:.1f} s, transformers {theirs[-1]:.1f} s", flush=True)
    tokens = NUM_STREAMS * ANSWER_LEN
    mine, other = (tokens / statistics.median(times) for times in (ours, theirs))
    print(f"generated tokens/s over HTTP: chatserve {mine:.1f}, transformers static batch {other:.1f}")
    print(f"ratio {mine / other:.2f} (goal: at least 1)")


def prompts() -> list[list[int]]:
    """Token ids that are no end tokens, different in every stream."""
    return [[1000 + (37 * stream + 11 * i) % 30000 for i in range(PROMPT_LEN)] for stream in range(NUM_STREAMS)]


@contextmanager
def serving() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server of the default model in a process of its own; its base URL."""
    command = [sys.executable, "-m", "chatserve", "serve", "--port", "0", *sys.argv[2:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        for line in server.stdout:
            if found := re.search(r"http://\S+", line):
                break
        else:
            raise RuntimeError("the server did not start")
        try:
            yield found[0], server
        finally:
            server.terminate()


async def stream_all(url: str) -> None:
    """Stream all answers at once and check that each has its tokens."""
    limits = httpx.Limits(max_connections=NUM_STREAMS)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits, trust_env=False) as client:
        counts = await asyncio.gather(*(stream(client, prompt) for prompt in prompts()))
    assert counts == [ANSWER_LEN] * NUM_STREAMS, counts


async def stream(client: httpx.AsyncClient, prompt: list[int]) -> int:
    body = {
        "model": "smollm2-135m-instruct",
        "prompt": prompt,
        "max_tokens": ANSWER_LEN,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    num_tokens = 0
    async with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                usage = json.loads(line[6:]).get("usage")
                num_tokens = usage["completion_tokens"] if usage else num_tokens
    return num_tokens


def load_transformers() -> Any:
    """The stock model with the weights that the server uses."""
    from chatserve.config import Config
    from chatserve.models.cache_folder import cache_folder
    from chatserve.models.converted import open_converted
    from chatserve.models.default_model import fetch_default_model
    from chatserve.models.gguf_loading import build_model
    from chatserve.models.placement import choose_placement
    from chatserve.models.threads import prepare_threads

    prepare_threads()
    placement = choose_placement(Config(device="cpu", dtype="float32"))
    model: Any = build_model(open_converted(fetch_default_model(cache_folder()), cache_folder()), placement)
    model.set_attn_implementation("sdpa")
    return model


def static_batch(model: Any) -> None:
    """One static batch: every row generates to its full length."""
    import torch

    given = torch.tensor(prompts())
    with torch.inference_mode():
        out = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            do_sample=False,
            min_new_tokens=ANSWER_LEN,
            max_new_tokens=ANSWER_LEN,
            pad_token_id=0,
        )
    assert out.shape[1] == PROMPT_LEN + ANSWER_LEN


def timed(run: Any) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
