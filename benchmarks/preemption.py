"""Swapping against recomputation by block size, as in Figure 19, on the default model.

    python benchmarks/preemption.py

Times on this machine: copying a 256-token group out and in again, and computing its tokens again in one prefill. The
paper swaps over PCIe, where small blocks make many small transfers; between two pools in main memory they cost little.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from chatserve.config import DEFAULT_MODEL, Config
from chatserve.models.batch import Batch
from chatserve.models.loading import load_model
from chatserve.models.runner import Runner

NUM_TOKENS = 256
ROUNDS = 5


def main() -> None:
    print(f"a group of {NUM_TOKENS} tokens: milliseconds to swap out and in, and to recompute; medians of {ROUNDS}")
    print(f"{'block size':>10}  {'swap':>7}  {'recompute':>9}  {'ratio':>6}")
    for block_size in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        runner = load_model(Config(model=DEFAULT_MODEL)).runner
        num_blocks = NUM_TOKENS // block_size
        runner.allocate(num_blocks, block_size, num_blocks)
        prefill(runner, block_size)
        rounds = [(swap(runner, num_blocks), prefill(runner, block_size)) for _ in range(ROUNDS)]
        swapping, recomputing = (statistics.median(times) * 1e3 for times in zip(*rounds, strict=True))
        print(f"{block_size:>10}  {swapping:>7.2f}  {recomputing:>9.1f}  {recomputing / swapping:>6.1f}")
        runner.close()


def swap(runner: Runner, num_blocks: int) -> float:
    blocks = np.random.default_rng(0).permutation(num_blocks).astype(np.int32)
    pairs, empty = np.stack([blocks, np.arange(num_blocks, dtype=np.int32)], 1), np.empty((0, 2), np.int32)
    started = time.perf_counter()
    runner.forward(Batch.of_moves(pairs, empty))
    runner.forward(Batch.of_moves(empty, pairs[:, ::-1].copy()))
    return time.perf_counter() - started


def prefill(runner: Runner, block_size: int) -> float:
    positions = np.arange(NUM_TOKENS, dtype=np.int32)
    batch = Batch(
        token_ids=1000 + 7 * positions,
        positions=positions,
        slots=positions,
        query_starts=np.array([0, NUM_TOKENS], np.int32),
        context_lens=np.array([NUM_TOKENS], np.int32),
        block_tables=np.arange(NUM_TOKENS // block_size, dtype=np.int32)[None],
        wanted=np.array([NUM_TOKENS - 1], np.int32),
    )
    started = time.perf_counter()
    runner.forward(batch)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
