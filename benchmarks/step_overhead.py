"""What a step costs without the forward and the sampler: scheduling, batch building, resuming decoders, publishing.

    python benchmarks/step_overhead.py

Times are CPU times of the engine's thread, so that other processes do not count. The goal is at most 1 ms at 64 running
sequences and 4 ms at 256 on a 2-core machine.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from chatserve.decoding import Registry, Sampling
from chatserve.engine import Engine, EngineLimits, GenerationRequest, sampler
from chatserve.engine.garbage import relax_garbage_collection
from chatserve.testing import VOCAB_SIZE, ConstantRunner, byte_vocabulary

NUM_STEPS = 150


def main() -> None:
    sampler.warm_up(VOCAB_SIZE)
    relax_garbage_collection()  # as a server does
    print(f"an iteration of a bare Python loop takes {loop_nanoseconds():.0f} ns now (about 40 on a quiet machine)")
    print(f"{'sequences':>9}  {'n':>2}  {'stop':>5}  {'median ms':>9}  {'begin':>6}  {'end':>6}")
    for num_sequences in (1, 64, 256):
        for n, stop in ((1, ()), (1, ("zzz",)), (4, ())):
            if n <= num_sequences:
                measure(num_sequences, n, stop)


def loop_nanoseconds() -> float:
    """How slow this machine is at the moment: other processes on its cores slow Python down several times."""
    started, total = time.thread_time(), 0
    for number in range(1_000_000):
        total += number
    return (time.thread_time() - started) * 1e3


def measure(num_sequences: int, n: int, stop: tuple[str, ...]) -> None:
    """Print the median cost of a decode step with this many sequences, in requests of n choices."""
    engine = _engine(num_sequences)
    for index in range(num_sequences // n):
        sampling = Sampling(seed=index, n=n, max_tokens=NUM_STEPS + 20, stop=stop, ignore_eos=True)
        engine.submit(GenerationRequest(prompt_token_ids=(1,) * 32, sampling=sampling), lambda news: None)
    begins, ends = [], []
    for _ in range(NUM_STEPS):
        started = time.thread_time()
        step = engine.begin_step()
        begun = time.thread_time()
        assert step is not None
        step.run()
        ran = time.thread_time()
        engine.end_step(step)
        if step.batch.num_tokens == num_sequences:
            begins.append(begun - started)
            ends.append(time.thread_time() - ran)
    begin, end = (statistics.median(times) * 1e3 for times in (begins, ends))
    print(f"{num_sequences:>9}  {n:>2}  {'yes' if stop else 'no':>5}  {begin + end:>9.2f}  {begin:>6.2f}  {end:>6.2f}")


def _engine(num_sequences: int) -> Engine:
    row = np.zeros(VOCAB_SIZE, np.float32)
    limits = EngineLimits(num_blocks=16 * num_sequences + 64, max_running_sequences=num_sequences)
    return Engine(ConstantRunner(row), byte_vocabulary(), Registry.load(), limits)


if __name__ == "__main__":
    main()
