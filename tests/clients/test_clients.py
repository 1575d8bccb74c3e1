"""Other people's clients against a running server: each is installed in the version named here, and chats.

These need a package registry, so they run with `make test-full` only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.harness import CALL, serve_fake

pytestmark = pytest.mark.full

HERE = Path(__file__).parent
TEXT = "Hello, this is a test."
WEATHER = {"city": "Paris", "days": 2}
CALLS = [["weather", WEATHER]]
RIGHT = {
    **dict.fromkeys(("text", "streamed", "responded", "sdk", "sdk_responded"), TEXT),
    **dict.fromkeys(("calls", "responded_calls", "sdk_calls", "sdk_responded_calls", "parsed_calls"), CALLS),
    **dict.fromkeys(("parsed", "parsed_stream"), WEATHER),
    "choices": 3,
    "refused": "temperature",
}
PYTHON_CLIENTS = [
    ("openai_client.py", "openai==1.109.1"),
    ("openai_client.py", "openai==3.57.0"),
    ("langchain_client.py", "langchain-openai==1.7.4"),
    ("litellm_client.py", "litellm==1.110.2"),
]
NODE_PACKAGES = ["openai@6.49.0", "ai@6.0.326", "@ai-sdk/openai@3.0.141", "@ai-sdk/openai-compatible@2.0.92"]


@pytest.fixture(scope="module")
def urls() -> Iterator[tuple[str, str]]:
    """A server that answers with text, and one that calls a tool."""
    with serve_fake(TEXT) as text, serve_fake(CALL) as calls:
        yield f"http://127.0.0.1:{text.port}", f"http://127.0.0.1:{calls.port}"


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


def check(output: str) -> None:
    found = json.loads(output.splitlines()[-1])
    assert len(found) >= 4
    assert found == {name: RIGHT[name] for name in found}


@pytest.mark.parametrize(("program", "package"), PYTHON_CLIENTS, ids=lambda value: value)
def test_python_clients(urls: tuple[str, str], tmp_path: Path, program: str, package: str) -> None:
    python = new_environment(tmp_path / "environment", package)
    check(run(python, HERE / program, *urls, env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}))


def test_the_llm_command(urls: tuple[str, str], tmp_path: Path) -> None:
    python = new_environment(tmp_path / "environment", "llm==0.36")
    models = f'- model_id: fake\n  model_name: fake\n  api_base: "{urls[0]}/v1"\n'
    (tmp_path / "extra-openai-models.yaml").write_text(models)
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    for option in ("--stream", "--no-stream"):
        options = [] if option == "--stream" else [option]
        assert run(python.parent / "llm", "-m", "fake", *options, "Hi", env=environment).strip() == TEXT


def test_node_clients(urls: tuple[str, str], tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    npm = shutil.which("npm", path=path)
    if npm is None:
        pytest.skip("no Node on this machine")
    environment = {**os.environ, "PATH": path}
    shutil.copy(HERE / "node_client.mjs", tmp_path)
    run(npm, "install", "--no-audit", "--no-fund", *NODE_PACKAGES, cwd=tmp_path, env=environment)
    check(run("node", "node_client.mjs", *urls, cwd=tmp_path, env=environment))
