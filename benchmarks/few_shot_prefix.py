"""A few-shot prefix of 341 tokens shared by 32 requests, as in Figure 16b: throughput with and without sharing.

    python benchmarks/few_shot_prefix.py [rounds]

Each request adds 32 tokens of its own and generates 32. Both sides run in turn in one process on the default model; the
paper reports 3.58x for this prefix. Answers must be the same either way.
"""

from __future__ import annotations

import statistics
import sys
import time

from chatserve.config import Config
from chatserve.decoding import Sampling
from chatserve.engine import Completion, Engine, GenerationRequest
from chatserve.engine.building import build_engine
from chatserve.engine.llm import run_all

PREFIX_LEN, OWN_LEN, ANSWER_LEN, NUM_REQUESTS = 341, 32, 32, 32


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    _, engine = build_engine(Config(kv_memory=1.0, prefix_caching=False))
    prefix = tuple(1000 + 7 * i for i in range(PREFIX_LEN))
    own = [tuple(20000 + 97 * number + i for i in range(OWN_LEN)) for number in range(NUM_REQUESTS)]
    request = engine.register_prefix("few-shot", prefix, lambda news: None)
    while not request.is_finished:
        engine.step()
    whole = [given(prefix + suffix, "greedy") for suffix in own]
    shared = [given(suffix, "shared-prefix", prefix="few-shot") for suffix in own]
    times: dict[str, list[float]] = {"shared": [], "unshared": []}
    for _ in range(rounds):
        first = timed(engine, shared, times["shared"])
        second = timed(engine, whole, times["unshared"])
    same = sum(a.outputs[0].token_ids == b.outputs[0].token_ids for a, b in zip(first, second, strict=True))
    fast, slow = (statistics.median(times[side]) for side in ("shared", "unshared"))
    tokens = NUM_REQUESTS * ANSWER_LEN
    print(
        f"shared {tokens / fast:.1f} tok/s, unshared {tokens / slow:.1f} tok/s, ratio {slow / fast:.2f} (paper: 3.58)"
    )
    print(f"{same} of {NUM_REQUESTS} answers are the same tokens")


def given(prompt: tuple[int, ...], decoder: str, **params: str) -> GenerationRequest:
    sampling = Sampling(temperature=0, max_tokens=ANSWER_LEN, ignore_eos=True)
    return GenerationRequest(prompt_token_ids=prompt, sampling=sampling, decoder=decoder, decoder_params=params)


def timed(engine: Engine, requests: list[GenerationRequest], times: list[float]) -> list[Completion]:
    started = time.perf_counter()
    completions = run_all(engine, requests)
    times.append(time.perf_counter() - started)
    return completions


if __name__ == "__main__":
    main()
