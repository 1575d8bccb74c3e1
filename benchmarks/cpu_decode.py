"""How fast the CPU runner runs the default model, and how close it is to float32.

Usage: ``python benchmarks/cpu_decode.py [--quality] [--transformers] [--weights KIND]``. Times are of the forward,
without scheduler and sampler; rates are given for the best, the quarter-fastest and the median step, since other
processes only ever slow steps down. ``--transformers`` measures the transformers runner in turns with it.
``--quality`` compares logits over the recorded prompts and answers of the tests with those of transformers in float32.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chatserve.config import Config
from chatserve.models.batch import Batch, Float32Array
from chatserve.models.loading import load_model
from chatserve.models.runner import Runner

BLOCK_SIZE, NUM_BLOCKS, CONTEXT = 16, 1024, 160
REFERENCES = Path(__file__).parents[1] / "tests" / "default_model" / "data" / "greedy.json"


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


def compare(ours: Runner, exact: Runner) -> None:
    """Print agreement and perplexity over the recorded prompts and answers."""
    same, count, divergence, nll = 0, 0, 0.0, np.zeros(2)
    for reference in json.loads(REFERENCES.read_text()):
        token_ids = reference["prompt"] + reference["answer"]
        batch = prefill(token_ids, list(range(len(token_ids) - 1)))
        logprobs = [_log_softmax(runner.forward(batch)) for runner in (ours, exact)]
        same += int((logprobs[0].argmax(1) == logprobs[1].argmax(1)).sum())
        count += len(token_ids) - 1
        divergence += float((np.exp(logprobs[1]) * (logprobs[1] - logprobs[0])).sum())
        nll -= [float(each[np.arange(len(each)), token_ids[1:]].sum()) for each in logprobs]
    perplexity = np.exp(nll / count)
    print(f"top-1 agreement {100 * same / count:.2f} % of {count} positions, KL {divergence / count:.1e}")
    print(f"perplexity {perplexity[0]:.4f}, of the float32 model {perplexity[1]:.4f}")


def _log_softmax(logits: Float32Array) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    logprobs: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logprobs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quality", action="store_true", help="compare logits with float32")
    parser.add_argument("--transformers", action="store_true", help="measure the transformers runner, too")
    parser.add_argument("--weights", default="auto", choices=["auto", "native", "int8", "fp32"])
    options = parser.parse_args()
    runners = {"cpu": load_model(Config(device="cpu", weights=options.weights)).runner}
    if options.transformers or options.quality:
        runners["transformers"] = load_model(Config(device="cpu", dtype="float32")).runner
    for runner in runners.values():
        runner.allocate(NUM_BLOCKS, BLOCK_SIZE)
    print(runners["cpu"].info.description)
    if options.quality:
        compare(runners["cpu"], runners["transformers"])
    if not options.transformers:
        runners.pop("transformers", None)
    vocab_size = runners["cpu"].info.vocab_size
    for num_sequences in (1, 8, 32):
        measure(runners, f"decode {num_sequences}", decode(num_sequences, vocab_size), 40 if num_sequences == 1 else 15)
    tokens = np.random.default_rng(1).integers(0, vocab_size, 512).tolist()
    measure(runners, "prefill 512", prefill(tokens, [511]), 5)


if __name__ == "__main__":
    main()
