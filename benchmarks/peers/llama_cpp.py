"""`LlamaCpp`: llama.cpp, measured by its own ``llama-batched-bench``; `find_program`, where its programs are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from benchmarks.peers.installation import llama_cpp_folder
from benchmarks.peers.workload import Workload

_BENCH = "llama-batched-bench"


def find_program(name: str, folder: Path | None) -> str | None:
    """A program of llama.cpp: in `folder`, or else where `install` puts it or on PATH."""
    if folder:
        return shutil.which(name, path=str(folder))
    return shutil.which(name, path=str(llama_cpp_folder())) or shutil.which(name)


class LlamaCpp:
    """A `Peer`. Its bench reports prefill and decoding apart, without sampling, which flatters it a little.

    Args:
        name: in the tables.
        model: GGUF file.
        folder: where the binaries are; None looks where `install` puts them, and on PATH.
    """

    def __init__(self, name: str, model: Path, folder: Path | None) -> None:
        self.name, self._model, self._folder = name, model, folder

    def obstacle(self) -> str | None:
        if find_program(_BENCH, self._folder) is None:
            return f"{_BENCH} is not there: python -m benchmarks.peers install llama.cpp, or give --llama-cpp FOLDER"
        return None if self._model.exists() else f"no {self._model}: python -m benchmarks.peers install llama.cpp"

    def can_run(self, workload: Workload) -> bool:
        return workload.kind in ("decode", "prefill")

    def seconds(self, workload: Workload, turn: int) -> float:
        bench = find_program(_BENCH, self._folder)
        assert bench is not None
        num_tokens = workload.num_requests * (workload.prompt_len + workload.answer_len)
        threads = str(len(os.sched_getaffinity(0)))
        command = [
            bench, "-m", str(self._model), "-c", str(num_tokens + 64), "-b", "512",
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
