"""How fast the CPU runner runs the default model, and how close it is to float32.

Usage: ``python benchmarks/cpu_decode.py [--rates] [--transformers] [--weights KIND]``. Times are of the forward,
without scheduler and sampler; rates are given for the best, the quarter-fastest and the median step, since other
processes only ever slow steps down. ``--transformers`` measures the transformers runner in turns with it. Then come,
unless ``--rates`` are all that is wanted: how fast a step of one row reads the weights, against a loop over as much
memory that does nothing else, in turns (goal: 60 %); what share of a step each kind of stage takes; and what the
model says about a public-domain text, against what transformers says in float32, recorded by the tests, for every way
to round (goals: the same most likely token in 97 %, perplexity at most 1 % higher).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numba import get_num_threads, njit, prange

from chatserve.config import Config
from chatserve.models.batch import Batch
from chatserve.models.cpu.huge_pages import huge_zeros
from chatserve.models.loading import load_model
from chatserve.models.runner import Runner

if TYPE_CHECKING:
    from chatserve.models.cpu.cpu_runner import CpuRunner

BLOCK_SIZE, NUM_BLOCKS, CONTEXT = 16, 1024, 160
REFERENCES = Path(__file__).parents[1] / "tests" / "cpu_runner" / "data" / "quality.json"
ROUNDINGS: list[dict[str, Any]] = [{}, {"activations": "int16"}, {"activations": "int16", "kv_dtype": "float32"}]


def decode(num_sequences: int, vocab_size: int) -> Batch:
    """One token for each of `num_sequences` sequences with CONTEXT tokens in scattered blocks."""
    random = np.random.default_rng(0)
    width = CONTEXT // BLOCK_SIZE + 1
    tables = random.permutation(NUM_BLOCKS)[: num_sequences * width].reshape(num_sequences, width).astype(np.int32)
    positions = np.full(num_sequences, CONTEXT, np.int32)
    rows = np.arange(num_sequences + 1, dtype=np.int32)
    token_ids = random.integers(0, vocab_size, num_sequences).astype(np.int32)
    slots = tables[:, -1] * BLOCK_SIZE + CONTEXT % BLOCK_SIZE
    return Batch(token_ids, positions, slots, rows, positions + 1, tables, rows[:-1])


def prefill(token_ids: list[int], wanted: list[int]) -> Batch:
    """A prompt in the first blocks."""
    length = len(token_ids)
    positions = np.arange(length, dtype=np.int32)
    table = np.arange(-(-length // BLOCK_SIZE), dtype=np.int32)[None]
    ends = np.array([0, length], np.int32)
    return Batch(np.array(token_ids, np.int32), positions, positions, ends, ends[1:], table, np.array(wanted, np.int32))


def step_seconds(runner: Runner, batch: Batch) -> float:
    started = time.perf_counter()
    runner.forward(batch)
    return time.perf_counter() - started


def measure(runners: dict[str, Runner], label: str, batch: Batch, num_steps: int) -> None:
    """Time steps of all runners in turns and print tokens a second."""
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(num_steps + 1):
        for name, runner in runners.items():
            seconds[name].append(step_seconds(runner, batch))
    for name, times in seconds.items():
        rates = batch.num_tokens / np.quantile(times[1:], [0.0, 0.25, 0.5])
        print(f"{label:12} {name:13} {rates[0]:7.0f} {rates[1]:7.0f} {rates[2]:7.0f} tok/s (best, quarter, median)")


@njit(parallel=True, nogil=True)
def read_all(numbers, num_threads, sums):  # type: ignore[no-untyped-def]
    """Add up int64[N] in as many equal parts as there are threads."""
    part = len(numbers) // num_threads
    for thread in prange(num_threads):
        total = 0
        for number in numbers[thread * part : (thread + 1) * part]:
            total += number
        sums[thread] = total


def compare_with_reading(runner: CpuRunner, batch: Batch, num_steps: int) -> None:
    """Print how fast a step reads weights and how fast memory can be read."""
    numbers, sums = huge_zeros((runner.weight_bytes // 8,), np.int64), np.zeros(get_num_threads(), np.int64)
    numbers.fill(1)  # what was never written lies nowhere
    steps, readings = [], []
    for _ in range(num_steps):
        steps.append(step_seconds(runner, batch))
        started = time.perf_counter()
        read_all(numbers, get_num_threads(), sums)
        readings.append(time.perf_counter() - started)
    by_step, bare = (runner.weight_bytes / np.quantile(times[1:], [0.0, 0.5]) / 1e9 for times in (steps, readings))
    megabytes, shares = runner.weight_bytes / 1e6, 100 * by_step / bare
    print(
        f"{megabytes:.0f} MB of weights are read at {by_step[0]:.1f} and {by_step[1]:.1f} GB/s (best, median), "
        f"by a bare loop at {bare[0]:.1f} and {bare[1]:.1f}: {shares[0]:.0f} and {shares[1]:.0f} %"
    )


def profile(runner: CpuRunner, batches: dict[str, Batch], num_steps: int) -> None:
    """Print the share of each kind of stage; every stage counts with the least it took in `num_steps` steps."""
    columns = []
    for batch in batches.values():
        steps = []
        for _ in range(num_steps):
            runner.forward(batch)
            steps.append(list(runner.stage_cycles().values()))
        columns.append(np.min(steps, axis=0))
    print("share of a step, %    " + "".join(f"{label:>14}" for label in batches))
    for place, name in enumerate(runner.stage_cycles()):
        shares = [100 * column[place] / max(1, column.sum()) for column in columns]
        print(f"{name:22}" + "".join(f"{share:14.1f}" for share in shares))


def compare(weights: str) -> None:
    """Print agreement with float32 in the most likely token, and perplexity against that of float32."""
    windows = json.loads(REFERENCES.read_text())
    for settings in ROUNDINGS:
        runner = load_model(Config(device="cpu", **{"weights": weights, **settings})).runner
        runner.allocate(64, BLOCK_SIZE)
        same, count, surprise, expected = 0, 0, 0.0, 0.0
        for window in windows:
            token_ids, num_next = window["token_ids"], len(window["token_ids"]) - 1
            logits = runner.forward(prefill(token_ids, list(range(num_next))))
            largest = logits.max(axis=1)
            totals = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))
            surprise += float((totals - logits[np.arange(num_next), token_ids[1:]]).sum())
            expected += window["surprise"]
            same += int((logits.argmax(axis=1) == window["most_likely"]).sum())
            count += num_next
        perplexities = f"perplexity {np.exp(surprise / count):.4f}, in float32 {np.exp(expected / count):.4f}"
        print(
            f"{runner.info.description}, {settings or 'default'}: agreement {100 * same / count:.2f} %, {perplexities}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rates", action="store_true", help="nothing but rates")
    parser.add_argument("--transformers", action="store_true", help="measure the transformers runner, too")
    parser.add_argument("--weights", default="auto", choices=["auto", "native", "int8", "fp32"])
    options = parser.parse_args()
    runners = {"cpu": load_model(Config(device="cpu", weights=options.weights)).runner}
    if options.transformers:
        runners["transformers"] = load_model(Config(device="cpu", dtype="float32")).runner
    for runner in runners.values():
        runner.allocate(NUM_BLOCKS, BLOCK_SIZE)
    ours = runners["cpu"]
    print(ours.info.description)
    tokens = np.random.default_rng(1).integers(0, ours.info.vocab_size, 512).tolist()
    batches = {f"decode {size}": decode(size, ours.info.vocab_size) for size in (1, 8, 32)}
    batches["prefill 512"] = prefill(tokens, [511])
    for label, num_steps in zip(batches, (40, 15, 15, 5), strict=True):
        measure(runners, label, batches[label], num_steps)
    if options.rates:
        return
    fast = cast("CpuRunner", ours)
    compare_with_reading(fast, batches["decode 1"], 40)
    profile(fast, batches, 5)
    compare(options.weights)


if __name__ == "__main__":
    main()
