"""Contexts of 100,000 tokens: what the engine itself spends on a decode step, and the size of the control message.

The one experiment in real time: it runs alone, and its rows are ratios.
"""

from __future__ import annotations

import pickle
import time
from pathlib import Path

from benchmarks.paper.instant_runner import InstantRunner
from benchmarks.paper.laboratory import Laboratory
from benchmarks.paper.report import Row
from benchmarks.paper.served_model import OPT_13B
from chatserve.decoding import Registry, Sampling
from chatserve.engine import Engine, EngineLimits, GenerationRequest
from chatserve.testing import byte_vocabulary

_CONTEXTS = (1_000, 10_000, 100_000)
_NUM_SEQUENCES = 16
_NUM_STEPS = 300
_NUM_STEPS_BEFORE = 3  # the prefill, and what else differs from later steps
_BLOCK_SIZE = 16


def run(laboratory: Laboratory, folder: Path) -> list[Row]:
    """CPU time of scheduling, batch building and resuming; contexts take turns, so that a slow minute hits all."""
    engines = {context: _engine(context) for context in _CONTEXTS}
    seconds = {context: float("inf") for context in _CONTEXTS}
    num_bytes = {}
    for _ in range(_NUM_STEPS):
        for context, engine in engines.items():
            took, num_bytes[context] = _step(engine)
            seconds[context] = min(seconds[context], took)
    base = _CONTEXTS[0]
    rows = []
    for context in _CONTEXTS:
        label = f"{_NUM_SEQUENCES} contexts of {context:,} tokens"
        ratio = seconds[context] / seconds[base]
        rows.append(Row("beside the paper", f"{label}: CPU time of a step by that at {base:,}", None, ratio))
        message = num_bytes[context] / 1024
        rows.append(Row("beside the paper", f"{label}: control message, KiB", None, message))
        kv = _NUM_SEQUENCES * context * OPT_13B.kv_bytes_per_token / num_bytes[context]
        rows.append(Row("beside the paper", f"{label}: KV bytes of OPT-13B for each of the message's", None, kv))
    return rows


def _engine(context: int) -> Engine:
    limits = EngineLimits(
        num_blocks=_NUM_SEQUENCES * (context + 2 * _NUM_STEPS) // _BLOCK_SIZE + 64,
        block_size=_BLOCK_SIZE,
        max_batch_tokens=_NUM_SEQUENCES * context,
        prefix_caching=False,
    )
    engine = Engine(InstantRunner(2 * context, 1), byte_vocabulary(), Registry.load(), limits)
    for seed in range(_NUM_SEQUENCES):
        sampling = Sampling(seed=seed, max_tokens=context, ignore_eos=True)
        engine.submit(GenerationRequest(prompt_token_ids=(0,) * context, sampling=sampling), lambda news: None)
    for _ in range(_NUM_STEPS_BEFORE):
        engine.step()
    return engine


def _step(engine: Engine) -> tuple[float, int]:
    """One decode step: CPU seconds of this thread without forward and sampling, and the bytes of the pickled batch."""
    begun = time.thread_time()
    step = engine.begin_step()
    seconds = time.thread_time() - begun
    assert step is not None
    step.run()
    begun = time.thread_time()
    engine.end_step(step)
    return seconds + time.thread_time() - begun, len(pickle.dumps(step.batch, protocol=5))
