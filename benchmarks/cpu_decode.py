"""How fast the CPU runner runs the default model, and how close it is to float32.

Usage: ``python benchmarks/cpu_decode.py [--quality] [--profile] [--transformers] [--weights KIND]``. Times are of the
forward, without scheduler and sampler; rates are given for the best, the quarter-fastest and the median step, since
other processes only ever slow steps down. ``--transformers`` measures the transformers runner in turns with it.
``--profile`` tells what share of a step each kind of stage takes. ``--quality`` compares what the model says about a
public-domain text with what transformers says in float32, recorded by the tests, for every way to round.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from chatserve.config import Config
from chatserve.models.batch import Batch
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
    parser.add_argument("--quality", action="store_true", help="compare with float32")
    parser.add_argument("--profile", action="store_true", help="tell where the time of a step goes")
    parser.add_argument("--transformers", action="store_true", help="measure the transformers runner, too")
    parser.add_argument("--weights", default="auto", choices=["auto", "native", "int8", "fp32"])
    options = parser.parse_args()
    if options.quality:
        compare(options.weights)
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
    if options.profile:
        profile(cast("CpuRunner", ours), batches, 5)


if __name__ == "__main__":
    main()
