"""The harness that compares engines: who runs when, what is left out and why, and what the tables say."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import httpx
import pytest

from benchmarks.peers.comparison import Result, compare
from benchmarks.peers.first_token import FirstTokens, first_token_table
from benchmarks.peers.http_streams import Streams, plot_streams, stream_table
from benchmarks.peers.llama_cpp import LlamaCpp
from benchmarks.peers.peer import WorkerPeer
from benchmarks.peers.report import save, table
from benchmarks.peers.servers import Server, server_table
from benchmarks.peers.workload import Workload, standard_workloads

DECODE = Workload("decode", "decode", 2, 8, 5)
PREFILL = Workload("prefill", "prefill", 1, 64, 1)


class FakePeer:
    """Takes a given time, or fails from a turn on."""

    def __init__(self, name: str, seconds: float, log: list[str], fails_at: int = 99) -> None:
        self.name, self._seconds, self._log, self._fails_at = name, seconds, log, fails_at

    def obstacle(self) -> str | None:
        return None

    def can_run(self, workload: Workload) -> bool:
        return workload.kind == "decode"

    def seconds(self, workload: Workload, turn: int) -> float:
        self._log.append(f"{self.name}{turn}")
        if turn >= self._fails_at:
            raise RuntimeError(f"{self.name}: broke")
        return self._seconds

    def close(self) -> None:
        pass


def test_engines_take_turns_and_a_broken_one_is_left_out() -> None:
    log: list[str] = []
    told: list[str] = []
    peers = [FakePeer("a", 2.0, log), FakePeer("b", 4.0, log, fails_at=1)]
    results = compare(list(peers), [PREFILL, DECODE], 3, told.append)
    assert log == ["a0", "b0", "b1", "a1", "a2"]
    assert [(result.engine, result.rates) for result in results] == [("a", [4.0] * 3), ("b", [2.0])]
    assert "decode: left out b: broke" in told


def test_rates_count_what_is_timed() -> None:
    assert (DECODE.num_tokens, PREFILL.num_tokens) == (2 * 4, 64)
    assert Workload("", "parallel", 3, 9, 5, width=8).num_tokens == 3 * 5 * 8
    assert Workload("", "beam", 3, 9, 5, width=4).num_tokens == 3 * 5


def test_only_the_shared_part_of_prompts_is_the_same_in_every_turn() -> None:
    few_shot = next(workload for workload in standard_workloads() if workload.kind == "few-shot")
    first, second = few_shot.prompts(0), few_shot.prompts(1)
    prompts = [*first, *second]
    assert {len(prompt) for prompt in prompts} == {few_shot.prompt_len}
    assert len({tuple(prompt[: few_shot.shared_len]) for prompt in prompts}) == 1
    assert len({tuple(prompt[few_shot.shared_len :]) for prompt in prompts}) == len(prompts)


def test_tables_and_plots(tmp_path: Path) -> None:
    results = [Result("decode", "chatserve", [10.0, 30.0, 20.0]), Result("decode", "other", [8.0])]
    lines = table(results).splitlines()
    assert lines[2] == "| decode | chatserve | 20.0 | 10.0 to 30.0 |  |"
    assert lines[3] == "| decode | other | 8.0 | 8.0 to 8.0 | 2.50 |"
    numbers, text, plot = save(results, tmp_path / "out")
    assert json.loads(numbers.read_text())[1]["rates"] == [8.0]
    assert text.read_text() == table(results)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_streams_are_summed_up() -> None:
    rounds = [Streams([0.1, 0.3], [0.01, 0.02, 0.03], 2.0, 8), Streams([0.2, 0.2], [0.02], 4.0, 8)]
    line = stream_table({("HTTP", "ours"): rounds}).splitlines()[2]
    assert line.startswith("| HTTP | ours | 3.0 | 200 / ")
    assert "| 20 / " in line


def test_streams_are_drawn(tmp_path: Path) -> None:
    rounds = [Streams([0.1], [0.01], 2.0, 8)]
    seen = {(title, name): rounds for title in ("one", "two") for name in ("ours", "theirs")}
    assert plot_streams(seen, tmp_path).read_bytes().startswith(b"\x89PNG")


def test_waits_for_first_tokens_are_summed_up() -> None:
    line = first_token_table([FirstTokens("ours", [0.1, 0.2, 0.4], [1.0])]).splitlines()[2]
    assert line == "| ours | 200 / 396 | 1.98 | 1000 / 1000 |"


def test_a_server_runs_only_in_its_turn(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(_SERVER)
    server = Server("some server", [sys.executable, str(script)])
    try:
        assert 0 < server.start_seconds < 60
        assert server.peak_memory() > 1_000_000
        assert _state(server._process.pid) == "T"
        with server.turn() as url:
            assert httpx.get(url, trust_env=False).text == "here"
        assert _state(server._process.pid) == "T"
        assert server_table([server]).splitlines()[2].startswith("| some server | ")
    finally:
        server.close()


def _state(process_id: int, expected: str = "T") -> str:
    """As Linux names it, once it is as expected; one that is not there any more counts as a zombie."""
    stat = Path(f"/proc/{process_id}/stat")
    for _ in range(1000):
        try:
            state = stat.read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            state = "Z"
        if state == expected:
            break
        time.sleep(0.01)
    return state


_SERVER = """
import http.server

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"here")

server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(f"serving on http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
"""


def test_llama_cpp_is_read_from_its_own_bench(tmp_path: Path) -> None:
    """The line is as llama-batched-bench of July 2026 prints it."""
    line = {"n_kv_max": 90, "pp": 8, "tg": 4, "pl": 2, "t_pp": 0.25, "speed_pp": 64.0, "t_tg": 0.5, "speed_tg": 16.0}
    script = tmp_path / "llama-batched-bench"
    script.write_text(f"#!{sys.executable}\nimport sys\nprint('main: n_kv_max = 90')\nprint({json.dumps(line)!r})\n")
    script.chmod(0o755)
    model = tmp_path / "model.gguf"
    peer = LlamaCpp("llama.cpp", model, tmp_path)
    assert str(model) in str(peer.obstacle())
    model.touch()
    assert peer.obstacle() is None
    assert (peer.seconds(DECODE, 0), peer.seconds(PREFILL, 0)) == (0.5, 0.25)
    script.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no such model')\n")
    with pytest.raises(RuntimeError, match="no such model"):
        peer.seconds(DECODE, 0)
    assert "llama-batched-bench" in str(LlamaCpp("llama.cpp", model, tmp_path / "empty").obstacle())


def test_what_a_server_has_started_stops_and_ends_with_it(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    child = (
        "import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
    )
    script.write_text(child + _SERVER.replace('print(f"', 'print(f"child {child.pid}, '))
    server = Server("some server", [sys.executable, str(script)])
    child_id = int(os.pread(server._log.fileno(), 99, 0).split()[1].rstrip(b","))
    try:
        assert _state(child_id) == "T"
    finally:
        server.close()
    assert _state(child_id, "Z") == "Z"


def test_an_engine_that_is_not_installed_says_how_to_get_it(tmp_path: Path) -> None:
    peer = WorkerPeer("some-engine", "loop", ("decode",), tmp_path / "bin" / "python", "some_engine")
    assert peer.obstacle() == "not installed: python -m benchmarks.peers install some-engine"
    here = WorkerPeer("some-engine", "loop", ("decode",), Path(sys.executable), "some_engine")
    assert "some_engine is not in" in str(here.obstacle())
