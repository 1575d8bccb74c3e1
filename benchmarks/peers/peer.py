"""`Peer`: an engine to measure, and `WorkerPeer`, one that runs in a process and perhaps an environment of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

from benchmarks.peers.workload import Workload
from chatserve.models.cache_folder import cache_folder

ROOT = Path(__file__).parents[2]


class Peer(Protocol):
    """An engine. It is measured in turns with the others, and must be still while they are."""

    name: str

    def obstacle(self) -> str | None:
        """Why it cannot be measured here, in one sentence, or None."""

    def can_run(self, workload: Workload) -> bool: ...

    def seconds(self, workload: Workload, turn: int) -> float:
        """Time of one run of the workload; raises RuntimeError, with the reason, when it fails."""

    def close(self) -> None: ...


def signal_all(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    """Send a signal to a process that began a session of its own, and to all that it has started there."""
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.killpg(process.pid, number)


class WorkerPeer:
    """An engine behind ``benchmarks.peers.workers.<module>``.

    The worker reads one order a line from its input and answers with one line of JSON. Between orders it is stopped, so
    that threads which wait by spinning take nothing from the engine whose turn it is.

    Args:
        name: of the engine.
        module: of the worker.
        kinds: workload kinds that it can run.
        python: the interpreter of its environment.
        package: what must be importable there.
    """

    def __init__(self, name: str, module: str, kinds: tuple[str, ...], python: Path, package: str) -> None:
        self.name, self._module, self._kinds, self._python, self._package = name, module, kinds, python, package
        self._process: subprocess.Popen[str] | None = None

    def obstacle(self) -> str | None:
        if not self._python.exists():
            return f"not installed: python -m benchmarks.peers install {self.name}"
        find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({self._package!r}) is None)"
        found = subprocess.run([self._python, "-c", find], check=False, capture_output=True)
        return f"{self._package} is not in {self._python.parents[1]}" if found.returncode else None

    def can_run(self, workload: Workload) -> bool:
        return workload.kind in self._kinds

    def seconds(self, workload: Workload, turn: int) -> float:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        signal_all(process, signal.SIGCONT)
        try:
            process.stdin.write(json.dumps(workload.order(turn)) + "\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(process.stdout.readline() or '{"error": "the worker ended"}')
        except BrokenPipeError:
            answer = {"error": "the worker ended"}
        signal_all(process, signal.SIGSTOP)
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return float(answer["seconds"])

    def close(self) -> None:
        if self._process is not None:
            signal_all(self._process, signal.SIGKILL)
            self._process.wait()

    def _start(self) -> subprocess.Popen[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "CHATSERVE_CACHE_FOLDER": str(cache_folder())}
        command = [str(self._python), "-m", f"benchmarks.peers.workers.{self._module}"]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
            text=True,
            start_new_session=True,
        )
