"""What a step costs without the forward and the sampler: scheduling, batch building, resuming decoders, publishing.

    python benchmarks/step_overhead.py [--phases]

Times are CPU times of the engine's thread, so that other processes do not count; but they slow it down through shared
caches and cores. So a bare loop is timed before and after each step, and the normalised cost is what the step would take
where an iteration of that loop takes 40 ns, as on a quiet machine. The goal is at most 1 ms at 64 running sequences and
4 ms at 256 on a 2-core machine. The last rows show that the cost does not grow with the context.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from chatserve.decoding import Registry, Sampling
from chatserve.engine import Engine, EngineLimits, GenerationRequest, sampler
from chatserve.engine.garbage import relax_garbage_collection
from chatserve.testing import VOCAB_SIZE, ConstantRunner, byte_vocabulary

NUM_STEPS = 150
QUIET_LOOP_NS = 40.0
_LOOP_ITERATIONS = 10_000


@dataclass(frozen=True)
class Workload:
    """Sequences that decode together, in requests of n choices."""

    num_sequences: int
    n: int = 1
    stop: tuple[str, ...] = ()
    context: int = 32


WORKLOADS = [
    *(
        Workload(count, n, stop)
        for count in (1, 64, 256)
        for n, stop in ((1, ()), (1, ("zzz",)), (4, ()))
        if n <= count
    ),
    *(Workload(16, context=context) for context in (1_000, 100_000)),
]


def main() -> None:
    sampler.warm_up(VOCAB_SIZE)
    relax_garbage_collection()  # as a server does
    print(
        "ms: median of a step, normalised: of step / loop * 40 ns; begin: schedule and build; end: take over and resume"
    )
    print(f"{'sequences':>9}  {'n':>2}  {'stop':>4}  {'context':>7}  {'ms':>6}  {'loop ns':>7}  ", end="")
    print(f"{'normalised':>10}  {'begin':>6}  {'end':>6}")
    for workload in WORKLOADS:
        measure(workload)


def loop_nanoseconds() -> float:
    """How slow this machine is at the moment: other processes on its cores slow Python down several times."""
    started, total = time.thread_time(), 0
    for number in range(_LOOP_ITERATIONS):
        total += number
    return (time.thread_time() - started) * 1e9 / _LOOP_ITERATIONS


def measure(workload: Workload) -> None:
    """Print the median cost of a decode step of this workload."""
    engine = _engine(workload)
    rows = []
    for _ in range(NUM_STEPS):
        before = loop_nanoseconds()
        started = time.thread_time()
        step = engine.begin_step()
        begun = time.thread_time()
        assert step is not None
        step.run()
        ran = time.thread_time()
        engine.end_step(step)
        ended = time.thread_time()
        if step.batch.num_tokens == workload.num_sequences:
            loop = (before + loop_nanoseconds()) / 2
            begin, end = (begun - started) * 1e3, (ended - ran) * 1e3
            scale = QUIET_LOOP_NS / loop
            rows.append((begin + end, loop, (begin + end) * scale, begin * scale, end * scale))
    cost, loop, normalised, begin, end = (statistics.median(column) for column in zip(*rows, strict=True))
    print(
        f"{workload.num_sequences:>9}  {workload.n:>2}  {'yes' if workload.stop else 'no':>4}  {workload.context:>7}  "
        f"{cost:>6.2f}  {loop:>7.0f}  {normalised:>10.2f}  {begin:>6.2f}  {end:>6.2f}"
    )


def _engine(workload: Workload) -> Engine:
    """An engine with the workload submitted; no two requests share blocks."""
    count, context = workload.num_sequences, workload.context
    limits = EngineLimits(
        num_blocks=count * (context + 2 * NUM_STEPS) // 15 + 64, max_running_sequences=count, max_batch_tokens=65536
    )
    runner = ConstantRunner(np.zeros(VOCAB_SIZE, np.float32), max_model_len=2 * context + 1024)
    engine = Engine(runner, byte_vocabulary(), Registry.load(), limits)
    for index in range(count // workload.n):
        sampling = Sampling(seed=index, n=workload.n, max_tokens=2 * NUM_STEPS, stop=workload.stop, ignore_eos=True)
        prompt = (index % 256,) * context
        engine.submit(GenerationRequest(prompt_token_ids=prompt, sampling=sampling), lambda news: None)
    return engine


if __name__ == "__main__":
    main()
