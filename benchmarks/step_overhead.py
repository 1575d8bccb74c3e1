"""What a step costs without the forward and the sampler: scheduling, batch building, resuming decoders, publishing.

    python benchmarks/step_overhead.py

Times are CPU times of the engine's thread, so that other processes do not count; but they slow it down through shared
caches and cores. So a bare loop is timed before and after each step, and the normalised cost is what the step would
take where an iteration of that loop takes 40 ns, as on a quiet machine. The goal is at most 1 ms at 64 running
sequences and 4 ms at 256 on a 2-core machine. The last rows show that the cost does not grow with the context.

Then: how long the model waits for its next step in an `AsyncEngine`, from the end of one run in the worker to the begin
of the next. The model is a stand-in that sleeps, as the host does while a device computes; steps take turns with the
worker left to itself to get the interpreter, with it handed over at once, and with the next step foreseen as well.
"""

from __future__ import annotations

import asyncio
import operator
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from chatserve.decoding import Registry, Sampling
from chatserve.engine import AsyncEngine, Engine, EngineLimits, GenerationRequest, sampler
from chatserve.engine.garbage import relax_garbage_collection
from chatserve.engine.step import Step
from chatserve.models.batch import Batch, Float32Array
from chatserve.testing import VOCAB_SIZE, ConstantRunner, byte_vocabulary

NUM_STEPS = 150
QUIET_LOOP_NS = 40.0
_LOOP_ITERATIONS = 10_000
PHASES = {  # the method of the engine, or of a part of it, that does it; the rest of a step is not worth a name
    "schedule": ("scheduler", "schedule"),
    "build": ("_batches", "build"),
    "advance": ("", "_advance_draws"),
    "decoders": ("_watchdog", "call"),
    "emit": ("", "_emit"),
    "resume": ("", "_continue"),  # less what is named above
}
WAYS = ("left alone", "handed over", "and foreseen")
STEPS_A_TURN = 5
DEVICE_SECONDS = 0.004


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
    print("medians of a step's milliseconds; all but the first column for a loop of 40 ns an iteration")
    columns = ["ms", "loop ns", "normalised", *PHASES]
    print("sequences  n  stop  context  " + "  ".join(f"{name:>8}" for name in columns))
    for workload in WORKLOADS:
        whole, phases = measure(workload), measure_phases(workload)
        begin = (
            f"{workload.num_sequences:>9}  {workload.n}  {'yes' if workload.stop else 'no':>4}  {workload.context:>7}"
        )
        print(begin + "  " + "  ".join(f"{number:>8.2f}" for number in (*whole, *phases)))
    print("\nmilliseconds between two runs of the model, normalised: median and quarter-fastest")
    print("sequences  " + "  ".join(f"{way:>14}" for way in WAYS))
    for count in (1, 64, 256):
        gaps = asyncio.run(measure_gaps(Workload(count)))
        quantiles = [np.quantile(gaps[way], [0.5, 0.25]) for way in WAYS]
        print(f"{count:>9}  " + "  ".join(f"{median:>7.2f}{quarter:>7.2f}" for median, quarter in quantiles))


def loop_nanoseconds() -> float:
    """How slow this machine is at the moment: other processes on its cores slow Python down several times."""
    started, total = time.thread_time(), 0
    for number in range(_LOOP_ITERATIONS):
        total += number
    return (time.thread_time() - started) * 1e9 / _LOOP_ITERATIONS


def measure(workload: Workload) -> tuple[float, float, float]:
    """Medians over the decode steps of a workload: milliseconds, nanoseconds of the loop, normalised milliseconds."""
    engine, rows = _engine(workload), []
    for _ in range(NUM_STEPS):
        before = loop_nanoseconds()
        started = time.thread_time()
        step = engine.begin_step()
        begun = time.thread_time()
        assert step is not None
        step.run()
        engine.foresee()
        ran = time.thread_time()
        engine.end_step(step)
        cost = (begun - started + time.thread_time() - ran) * 1e3
        loop = (before + loop_nanoseconds()) / 2
        if step.batch.num_tokens == workload.num_sequences:
            rows.append((cost, loop, cost * QUIET_LOOP_NS / loop))
    cost, loop, normalised = (statistics.median(column) for column in zip(*rows, strict=True))
    return cost, loop, normalised


def measure_phases(workload: Workload) -> list[float]:
    """Normalised median milliseconds of each phase; reading the clock for each request makes their sum larger."""
    engine, spent = _engine(workload), dict.fromkeys(PHASES, 0.0)
    for name, (path, attribute) in PHASES.items():
        owner = operator.attrgetter(path)(engine) if path else engine
        setattr(owner, attribute, _timed(getattr(owner, attribute), spent, name))
    rows = []
    for _ in range(NUM_STEPS):
        before = loop_nanoseconds()
        spent.update(dict.fromkeys(PHASES, 0.0))
        step = engine.begin_step()
        assert step is not None
        step.run()
        engine.foresee()
        engine.end_step(step)
        scale = QUIET_LOOP_NS / ((before + loop_nanoseconds()) / 2)
        if step.batch.num_tokens == workload.num_sequences:
            spent["resume"] -= spent["decoders"] + spent["emit"]
            rows.append([milliseconds * scale for milliseconds in spent.values()])
    return [statistics.median(column) for column in zip(*rows, strict=True)]


async def measure_gaps(workload: Workload) -> dict[str, list[float]]:
    """Normalised milliseconds between two runs of the model, for each of WAYS; all requests have clients that read."""
    engine = _WatchedEngine(_Device(workload), byte_vocabulary(), Registry.load(), _limits(workload))
    server = AsyncEngine(engine)
    generations = await server.submit_all(_requests(workload))
    await asyncio.gather(*(_read(generation) for generation in generations))
    await server.shutdown(1)
    return engine.gaps


async def _read(generation: Any) -> None:
    async for _ in generation:
        pass


class _Device(ConstantRunner):
    """Sleeps for a while in each step, and notes when that began and how slow the machine was."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(np.zeros(VOCAB_SIZE, np.float32), max_model_len=2 * workload.context + 1024)
        self.begun, self.loop = 0.0, QUIET_LOOP_NS

    def forward(self, batch: Batch) -> Float32Array:
        self.begun = time.perf_counter()
        time.sleep(DEVICE_SECONDS)
        self.loop = loop_nanoseconds()
        return super().forward(batch)


class _WatchedEngine(Engine):
    """Steps in each of WAYS in turn, and keeps the times between decode steps of all sequences."""

    def __init__(self, device: _Device, *others: Any) -> None:
        super().__init__(device, *others)
        self.gaps: dict[str, list[float]] = {way: [] for way in WAYS}
        self._device, self._ended, self._num_steps = device, 0.0, 0

    @property
    def _way(self) -> str:
        return WAYS[self._num_steps // STEPS_A_TURN % len(WAYS)]

    def begin_step(self) -> Step | None:
        step = super().begin_step()
        if step is not None and self._way == "left alone":
            step.has_begun.set()  # nobody waits for it
        return step

    def foresee(self) -> None:
        if self._way == "and foreseen":
            super().foresee()

    def end_step(self, step: Step) -> None:
        if self._num_steps % STEPS_A_TURN > 1 and step.batch.num_tokens == len(self.requests):
            gap = self._device.begun - self._ended
            self.gaps[self._way].append(gap * 1e3 * QUIET_LOOP_NS / self._device.loop)
        self._ended = self._device.begun + step.forward_seconds + step.sampling_seconds
        self._num_steps += 1
        super().end_step(step)


def _timed(function: Callable[..., Any], spent: dict[str, float], name: str) -> Callable[..., Any]:
    """The function, with the milliseconds that its calls take added up."""

    def timed(*arguments: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            spent[name] += (time.perf_counter() - started) * 1e3

    return timed


def _engine(workload: Workload) -> Engine:
    """An engine with the workload submitted; no two requests share blocks."""
    runner = ConstantRunner(np.zeros(VOCAB_SIZE, np.float32), max_model_len=2 * workload.context + 1024)
    engine = Engine(runner, byte_vocabulary(), Registry.load(), _limits(workload))
    for request in _requests(workload):
        engine.submit(request, lambda news: None)
    return engine


def _limits(workload: Workload) -> EngineLimits:
    count, context = workload.num_sequences, workload.context
    return EngineLimits(
        num_blocks=count * (context + 2 * NUM_STEPS) // 15 + 64, max_running_sequences=count, max_batch_tokens=65536
    )


def _requests(workload: Workload) -> list[GenerationRequest]:
    requests = []
    for index in range(workload.num_sequences // workload.n):
        sampling = Sampling(seed=index, n=workload.n, max_tokens=2 * NUM_STEPS, stop=workload.stop, ignore_eos=True)
        prompt = (index % 256,) * workload.context
        requests.append(GenerationRequest(prompt_token_ids=prompt, sampling=sampling))
    return requests


if __name__ == "__main__":
    main()
