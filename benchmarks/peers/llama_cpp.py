"""`LlamaCpp`: llama.cpp, measured by its own ``llama-batched-bench``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from benchmarks.peers.workload import Workload
from chatserve.models.cache_folder import cache_folder
from chatserve.models.default_model import fetch_default_model

_BINARY = "llama-batched-bench"


class LlamaCpp:
    """A `Peer`. Its bench reports prefill and decoding apart, without sampling, which flatters it a little.

    Args:
        folder: where the binaries are; None looks on PATH.
    """

    name = "llama.cpp"

    def __init__(self, folder: Path | None) -> None:
        self._binary = shutil.which(_BINARY, path=str(folder) if folder else None)

    def obstacle(self) -> str | None:
        return None if self._binary else f"{_BINARY} is neither on PATH nor in a folder given with --llama-cpp"

    def can_run(self, workload: Workload) -> bool:
        return workload.kind in ("decode", "prefill")

    def seconds(self, workload: Workload, turn: int) -> float:
        assert self._binary is not None
        num_tokens = workload.num_requests * (workload.prompt_len + workload.answer_len)
        threads = str(len(os.sched_getaffinity(0)))
        command = [
            self._binary, "-m", str(fetch_default_model(cache_folder())), "-c", str(num_tokens + 64), "-b", "512",
            "-npp", str(workload.prompt_len), "-ntg", str(max(1, workload.answer_len - 1)),
            "-npl", str(workload.num_requests), "-t", threads, "-tb", threads, "--output-format", "jsonl",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not results:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise RuntimeError(f"{self.name}: {last}")
        return float(results[-1]["t_pp" if workload.kind == "prefill" else "t_tg"])

    def close(self) -> None:
        """Nothing runs between measurements."""
