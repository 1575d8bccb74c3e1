"""500 requests at five times the rate the machine can serve: nobody is lost, nobody starves, memory stays flat.

    python benchmarks/overload.py [requests]

On the default model with a pool for about six answers. The rate is five times the throughput that a first batch of
requests shows. Prints how long requests waited, whether any overtook another, preemptions by kind, and the process's
memory after a tenth of the requests and at the end; ends with status 1 when a claim does not hold.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from chatserve.config import Config
from chatserve.decoding import Sampling
from chatserve.engine import Engine, GenerationRequest
from chatserve.engine.building import build_engine

OVERLOAD = 5
NUM_BLOCKS, BLOCK_SIZE = 32, 16
PROMPT_LEN, ANSWER_LEN = 32, 48


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    _, engine = build_engine(Config(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_queue=count))
    generator = random.Random(1)
    seconds = serve(engine, [given(generator) for _ in range(16)], [0.0] * 16)[0] / 16
    arrivals = np.cumsum([generator.expovariate(OVERLOAD / seconds) for _ in range(count)]).tolist()
    elapsed, admitted, ended, memory = serve(engine, [given(generator) for _ in range(count)], arrivals)
    waits = [start - arrival for start, arrival in zip(admitted, arrivals, strict=True)]
    stats = engine.stats()
    print(f"{count} requests in {elapsed:.0f} s, arriving at {OVERLOAD} times the rate of {1 / seconds:.1f} a second")
    print(f"waited for admission: median {np.median(waits):.1f} s, longest {max(waits):.1f} s")
    print(f"preemptions {stats['preemptions']:.0f}, by swapping {stats['preemptions_by_swap']:.0f}")
    print(f"memory {memory[0]} MiB after a tenth, {memory[1]} MiB at the end")
    claims = {
        "all requests ended with an answer": ended == count,
        "admitted in order of arrival": admitted == sorted(admitted),
        "the pool is empty": stats["blocks_used"] == 0 and stats["blocks_swapped"] == 0,
        "memory grew by less than 5 %": memory[1] < 1.05 * memory[0],
    }
    for claim, holds in claims.items():
        print(f"{'yes' if holds else 'NO '}  {claim}")
    sys.exit(not all(claims.values()))


def given(generator: random.Random) -> GenerationRequest:
    prompt = tuple(generator.randrange(1000, 40_000) for _ in range(PROMPT_LEN))
    length = generator.randrange(ANSWER_LEN // 2, ANSWER_LEN * 2)
    sampling = Sampling(n=generator.choice((1, 1, 1, 3)), seed=generator.randrange(1 << 30), max_tokens=length)
    return GenerationRequest(prompt_token_ids=prompt, sampling=sampling)


def serve(
    engine: Engine, requests: list[GenerationRequest], arrivals: list[float]
) -> tuple[float, list[float], int, list[int]]:
    """Run requests that arrive at these times (seconds): elapsed time, admission times, answers, memory in MiB."""
    started = time.monotonic()
    submitted: list[Any] = []
    ended: list[object] = []
    memory: list[int] = []
    while len(submitted) < len(requests) or engine.has_work:
        now = time.monotonic() - started
        while len(submitted) < len(requests) and arrivals[len(submitted)] <= now:
            submitted.append(engine.submit(requests[len(submitted)], lambda news: ended.append(news)))
        if not engine.step():
            time.sleep(0.001)
        if not memory and sum(news is None for news in ended) >= len(requests) // 10:
            memory.append(resident_mib())
    memory.append(resident_mib())
    admitted = [request.admitted_at - started for request in submitted]
    return time.monotonic() - started, admitted, sum(news is None for news in ended), memory


def resident_mib() -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))


if __name__ == "__main__":
    main()
