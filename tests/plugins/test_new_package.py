"""A stranger's decoder: a package of its own, installed with pip, is used like a built-in one, with no change here."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from starlette.testclient import TestClient

from chatserve.cli.application import application
from chatserve.config import Config
from chatserve.decoding import Registry, Sampling
from chatserve.engine import AsyncEngine, Engine, EngineLimits, GenerationRequest
from chatserve.engine.llm import run_all
from chatserve.errors import RequestError
from chatserve.server import create_app
from chatserve.testing import VOCAB_SIZE, FakeRunner, RandomLogits, byte_vocabulary

ROOT = Path(__file__).parents[2]
NAME = "likely-draft"


def chatserve(*arguments: str) -> Result:
    return CliRunner().invoke(application, ["decoders", *arguments])


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `chatserve decoders new` wrote."""
    folder = tmp_path_factory.mktemp("stranger")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = chatserve("new", NAME)
    assert result.exit_code == 0, result.output
    return folder / NAME


@pytest.fixture(scope="module")
def site(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where pip has installed the package; no index is asked."""
    target = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(package)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package can be imported, as in an environment where it is installed."""
    monkeypatch.syspath_prepend(str(site))
    yield
    sys.modules.pop("likely_draft", None)


def make_engine() -> Engine:
    return Engine(FakeRunner(RandomLogits(VOCAB_SIZE)), byte_vocabulary(), Registry.load(), EngineLimits(64))


def make_request(**params: object) -> GenerationRequest:
    sampling = Sampling(max_tokens=6, ignore_eos=True, seed=1)
    return GenerationRequest(
        prompt_token_ids=tuple(range(20)), sampling=sampling, decoder=NAME, decoder_params=dict(params)
    )


def test_the_files_of_a_new_package(package: Path) -> None:
    files = sorted(str(path.relative_to(package)) for path in package.rglob("*") if path.is_file())
    assert files == ["README.md", "likely_draft.py", "pyproject.toml", "tests/test_likely_draft.py"]
    project = tomllib.loads((package / "pyproject.toml").read_text())
    assert project["project"]["entry-points"] == {"chatserve.decoders": {NAME: "likely_draft:likely_draft"}}


def test_a_new_package_asks_no_index_for_chatserve(package: Path) -> None:
    """The name belongs to somebody else on PyPI."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    for wanted in (project["dependencies"], *project["optional-dependencies"].values()):
        assert not [requirement for requirement in wanted if requirement.startswith("chatserve")]
    texts = [path.read_text() for path in package.rglob("*") if path.suffix in (".md", ".toml", ".py")]
    assert not [text for text in texts if "pypi.org" in text or "pip install chatserve" in text]


def test_its_own_tests_pass(package: Path, site: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{site}:{ROOT}", "PYTEST_ADDOPTS": "-p no:asyncio"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


@pytest.mark.usefixtures("installed")
def test_the_command_line_lists_and_shows_it() -> None:
    lines = dict(line.split(maxsplit=1) for line in chatserve("list").stdout.splitlines())
    assert lines[NAME] == "Sample several drafts and answer with the one that the model finds likeliest."
    shown = chatserve("show", NAME).stdout
    assert shown.startswith(f"{NAME}  (chatserve-{NAME} 0.1.0, API 1)\n")
    assert "  drafts  integer, at least 1, at most 32, default 4.  Drafts to sample.\n" in shown


@pytest.mark.usefixtures("installed")
def test_the_engine_runs_it_with_its_parameters() -> None:
    [completion] = run_all(make_engine(), [make_request(drafts=3)])
    assert len(completion.outputs[0].token_ids) == 6
    assert completion.usage.computed_tokens == 20 + 3 * 5, "the prompt is computed once for all drafts"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"drafts": 0}, "Expected `int` >= 1"),
        ({"drafts": "many"}, "Expected `int`, got `str`"),
        ({"draft": 3}, "unknown field `draft`"),
    ],
)
def test_its_parameters_are_validated(params: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        make_engine().submit(make_request(**params), lambda news: None)
    assert caught.value.param is not None
    assert caught.value.param.startswith("decoder_params")


@pytest.mark.usefixtures("installed")
def test_the_api_lists_it_and_answers_with_it() -> None:
    with TestClient(create_app(AsyncEngine(make_engine()), Config(served_model_name="fake"))) as client:
        [listed] = [entry for entry in client.get("/v1/decoders").json()["data"] if entry["name"] == NAME]
        assert (listed["distribution"], listed["version"], listed["state"]) == (f"chatserve-{NAME}", "0.1.0", "ready")
        body = {"prompt": "abc", "max_tokens": 4, "seed": 1, "decoder": NAME, "decoder_params": {"drafts": 2}}
        answer = client.post("/v1/completions", json={"model": "fake", **body})
        assert answer.status_code == 200, answer.text
        refused = client.post("/v1/completions", json={"model": "fake", **body, "decoder_params": {"drafts": 99}})
        assert refused.status_code == 400
        assert "drafts" in refused.text


def test_without_the_package_the_name_is_unknown() -> None:
    with pytest.raises(RequestError, match="decoder 'likely-draft' is not known"):
        make_engine().submit(make_request(), lambda news: None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Shout", "must be lower case letters, digits and dashes"),
        ("../x", "must be lower case letters, digits and dashes"),
        ("9lives", "must be lower case letters, digits and dashes"),
        ("class", "a module cannot be called 'class'"),
        ("random", "a module cannot be called 'random'"),
        ("there", "there exists already"),
    ],
)
def test_names_that_cannot_be_used_are_refused(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    result = chatserve("new", name)
    assert result.exit_code == 1
    assert message in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
