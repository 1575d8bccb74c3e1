"""`Point`: one simulated run and what is kept of it, in a file a point, so that nothing is simulated twice."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paper.outcome import Outcome
from benchmarks.paper.served_model import MODELS
from benchmarks.paper.systems import System
from benchmarks.paper.workloads import WORKLOADS

RESULTS = Path(__file__).parents[1] / "results" / "paper"

_SIMULATION = (
    *("buddy", "contiguous", "conversations", "cost", "instant_runner", "outcome", "paged", "points", "reservation"),
    *("served_model", "systems", "traces", "workloads"),
)


@dataclass(frozen=True, slots=True)
class Point:
    """A system under one load.

    Attributes:
        model, workload: by name.
        rate: requests a second.
        seed: of lengths and arrivals.
        is_bursty: arrivals come in bursts; else as a Poisson process.
    """

    system: System
    model: str
    workload: str
    rate: float
    seed: int = 0
    is_bursty: bool = False

    def measure(self) -> dict[str, float]:
        """Figures of this run (see `summary`)."""
        return cached(repr(self), self._simulate)

    def _simulate(self) -> dict[str, float]:
        model = MODELS[self.model]
        jobs = WORKLOADS[self.workload].jobs(self.rate, self.seed, is_bursty=self.is_bursty)
        return summary(self.system.serve(model, jobs), model.trace_seconds)


def cached(name: str, simulate: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What `simulate` answers, computed once for each name and state of the simulation's source text."""
    key = hashlib.sha256(f"{name} {_simulation_digest()}".encode()).hexdigest()[:24]
    path = RESULTS / "points" / f"{key}.json"
    if path.exists():
        return dict(json.loads(path.read_text())["figures"])
    figures = simulate()
    _write(path, {"point": name, "figures": figures})
    return figures


@cache
def _simulation_digest() -> str:
    """Changes with the text of the modules that decide what a run gives (the engine's own are not among them)."""
    folder = Path(__file__).parent
    return hashlib.sha256(b"".join((folder / f"{name}.py").read_bytes() for name in _SIMULATION)).hexdigest()


def _write(path: Path, content: dict[str, Any]) -> None:
    """Several processes write points; nobody sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(content, indent=1))
    part.replace(path)


def summary(outcome: Outcome, trace_seconds: float) -> dict[str, float]:
    """What is kept of a run: latencies in seconds (a token), rates a second, shares of 1, lengths in tokens."""
    latencies, first_token = outcome.normalised_latencies(), outcome.first_token_seconds()
    jobs = [served.job for served in outcome.served]
    prompts, outputs = [job.prompt_len for job in jobs], [job.output_len for job in jobs]
    percentiles = {
        f"{name} p{percent}": float(np.percentile(values, percent))
        for name, values in (("latency", latencies), ("first token", first_token))
        for percent in (50, 95, 99)
    }
    return {
        "latency": float(latencies.mean()),
        "hour latency": outcome.latency_after(trace_seconds),
        "throughput": outcome.throughput,
        "batched": outcome.batched,
        "shared": outcome.shared,
        "prompt mean": float(np.mean(prompts)),
        "prompt deviation": float(np.std(prompts)),
        "output mean": float(np.mean(outputs)),
        "output deviation": float(np.std(outputs)),
        "goodput": goodput(outcome),
        "makespan": max(served.finished_at for served in outcome.served),
        **percentiles,
        **outcome.memory.shares(),
        **outcome.counters,
    }


def goodput(outcome: Outcome, first_token: float = 2.0, each_token: float = 0.1) -> float:
    """Requests a second that met both bounds: seconds to the first token, and from there on average for each more."""
    met = [
        served
        for served in outcome.served
        if served.first_token_at - served.job.arrival <= first_token
        and served.finished_at - served.first_token_at <= each_token * served.job.output_len
    ]
    return len(met) / max(served.finished_at for served in outcome.served)
