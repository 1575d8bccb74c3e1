"""Other people's clients against a running server: each is installed in the version named here, and chats.

These need a package registry, so they run with `make test-full` only.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.server.harness import CALL, Served, serve_fake

pytestmark = pytest.mark.full

HERE = Path(__file__).parent
TEXT = "Hello, this is a test."
WEATHER = {"city": "Paris", "days": 2}
CALLS = [["weather", WEATHER]]
RIGHT = {
    **dict.fromkeys(("text", "streamed", "responded", "sdk", "sdk_responded", "logprobs"), TEXT),
    **dict.fromkeys(("calls", "responded_calls", "sdk_calls", "sdk_responded_calls", "parsed_calls"), CALLS),
    **dict.fromkeys(("parsed", "parsed_stream"), WEATHER),
    "choices": 3,
    "busy": 429,
    "dead": 503,
    "refused": "temperature",
}
PYTHON_CLIENTS = [
    ("langchain_client.py", "langchain-openai==1.7.4"),
    ("litellm_client.py", "litellm==1.110.2"),
]
NODE_PACKAGES = ["openai@6.49.0", "ai@6.0.326", "@ai-sdk/openai@3.0.141", "@ai-sdk/openai-compatible@2.0.92"]


@dataclass
class Servers:
    """One that answers with text, one that calls a tool, one whose queue is full, and one whose engine is dead."""

    text: Served
    calls: Served
    busy: Served
    dead: Served

    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{server.port}" for server in (self.text, self.calls, self.busy, self.dead)]

    def num_tries(self) -> list[int]:
        """Chat requests so far that the busy and the dead server refused."""
        return [_count(self.busy, 429), _count(self.dead, 503)]


def _count(served: Served, status: int) -> int:
    line = f'http_requests_total{{method="POST",.*route="/v1/chat/completions",status="{status}"}} (\\d+)'
    found = re.search(line, served.http.get("/metrics").text)
    return int(found[1]) if found else 0


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with serve_fake(TEXT) as text, serve_fake(CALL) as calls, serve_fake(max_queue=0) as busy, serve_fake() as dead:
        dead.engine.status = "dead"
        yield Servers(text, calls, busy, dead)


def run(*command: str | Path, **options: Any) -> str:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=400, **options
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def new_environment(folder: Path, package: str) -> Path:
    """The interpreter of a new environment that holds one package and what it needs."""
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", package)
    return folder / "bin" / "python"


def check(output: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert len(found) >= 4
    assert found == {name: RIGHT[name] for name in found}
    return found


def check_openai(servers: Servers, output: str, tries_before: list[int]) -> None:
    """As `check`; a full queue is tried again twice, as the client does, a dead engine is not, as it was told."""
    assert {"choices", "logprobs", "busy", "dead", "parsed", "calls", "refused"} <= check(output).keys()
    tries = [now - before for now, before in zip(servers.num_tries(), tries_before, strict=True)]
    assert tries == [3, 1]


@pytest.mark.parametrize("package", ["openai==1.109.1", "openai==3.57.0"])
def test_openai_packages(servers: Servers, tmp_path: Path, package: str) -> None:
    python, before = new_environment(tmp_path / "environment", package), servers.num_tries()
    check_openai(servers, run(python, HERE / "openai_client.py", *servers.urls()), before)


@pytest.mark.parametrize(("program", "package"), PYTHON_CLIENTS, ids=lambda value: value)
def test_python_clients(servers: Servers, tmp_path: Path, program: str, package: str) -> None:
    python = new_environment(tmp_path / "environment", package)
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    check(run(python, HERE / program, *servers.urls()[:2], env=environment))


def test_the_llm_command(servers: Servers, tmp_path: Path) -> None:
    python = new_environment(tmp_path / "environment", "llm==0.36")
    models = f'- model_id: fake\n  model_name: fake\n  api_base: "{servers.urls()[0]}/v1"\n'
    (tmp_path / "extra-openai-models.yaml").write_text(models)
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    for option in ("--stream", "--no-stream"):
        options = [] if option == "--stream" else [option]
        assert run(python.parent / "llm", "-m", "fake", *options, "Hi", env=environment).strip() == TEXT


def test_node_clients(servers: Servers, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    npm = shutil.which("npm", path=path)
    if npm is None:
        pytest.skip("no Node on this machine")
    environment = {**os.environ, "PATH": path}
    shutil.copy(HERE / "node_client.mjs", tmp_path)
    run(npm, "install", "--no-audit", "--no-fund", *NODE_PACKAGES, cwd=tmp_path, env=environment)
    before = servers.num_tries()
    check_openai(servers, run("node", "node_client.mjs", *servers.urls(), cwd=tmp_path, env=environment), before)
