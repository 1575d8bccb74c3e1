"""The command as a user meets it: help that comes at once, errors of one line, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import chatserve
from chatserve.cli.application import application
from chatserve.configuration import settings
from chatserve.errors import ModelLoadError

HEAVY = ("torch", "transformers", "numba", "uvicorn", "starlette")
COMMANDS = [
    [],
    ["serve"],
    ["chat"],
    ["generate"],
    ["pull"],
    ["decoders"],
    ["decoders", "list"],
    ["decoders", "show"],
]
PROBE = """
import json, sys
from chatserve.cli import main
try:
    main()
finally:
    print(json.dumps([name for name in {heavy!r} if name in sys.modules]), file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, **options: str) -> Result:
    return CliRunner().invoke(application, arguments, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["serve", "--help"], ["decoders", "list"]], ids=" ".join
)
def test_nothing_heavy_is_imported_before_a_model_is_needed(arguments: list[str]) -> None:
    root = Path(chatserve.__file__).parent.parent
    program = f"import sys; sys.path.insert(0, {str(root)!r})\n" + PROBE.format(heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert json.loads(done.stderr.splitlines()[-1]) == []
    assert done.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command) or "chatserve")
def test_every_command_explains_itself(command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")
    if len(command) < 2:
        assert "Examples:\n" in result.stdout


def test_serve_offers_every_setting_with_its_description() -> None:
    words = run("serve", "--help").stdout.replace(",", " ").split()
    for setting in settings().values():
        assert setting.name == "model" or setting.flag in words
        assert setting.name == "model" or setting.description.split()[0] in words


def test_version() -> None:
    assert run("--version").stdout == f"chatserve {chatserve.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "environ", "line"),
    [
        (["serve", "--port", "abc"], {}, "Error: --port: 'abc' is not possible, expected an integer from 0 to 65535"),
        (
            ["serve"],
            {"CHATSERVE_DEVICE": "tpu"},
            "Error: CHATSERVE_DEVICE: 'tpu' is not possible, expected one of auto, cpu, cuda",
        ),
        (
            ["generate", "hi", "--config", "none.toml"],
            {},
            "Error: none.toml: cannot be read (No such file or directory)",
        ),
        (
            ["chat", "--block-size", "24"],
            {},
            "Error: --block-size: '24' is not possible, expected a power of two from 1 to 256",
        ),
        (["decoders", "list", "--decoders", "none.py"], {}, "Error: decoders: no Python file at none.py"),
    ],
)
def test_a_configuration_error_is_one_line_and_exit_code_2(
    arguments: list[str], environ: dict[str, str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(line)
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_another_error_of_ours_is_one_line_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(config: object) -> None:
        raise ModelLoadError("model 'x' cannot be loaded:\nno such folder")

    monkeypatch.setattr("chatserve.cli.local_model.LocalModel", refuse)
    result = run("generate", "hi")
    assert (result.exit_code, result.stderr) == (1, "Error: model 'x' cannot be loaded: no such folder\n")


def test_an_unexpected_exception_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(config: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("chatserve.cli.local_model.LocalModel", fail)
    assert isinstance(run("generate", "hi").exception, ZeroDivisionError)


@pytest.mark.parametrize("arguments", [["decoders", "list"], ["decoders", "show", "beam"]], ids=" ".join)
def test_output_that_cannot_be_written_is_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = _command(arguments, stdout=full)
    assert (done.returncode, done.stderr) == (1, "Error: cannot write the output: No space left on device\n")


@pytest.mark.parametrize("arguments", [["chat"], ["generate", "-"]], ids=" ".join)
def test_closed_input_is_refused_before_a_model_is_loaded(arguments: list[str]) -> None:
    done = _command(arguments, preexec_fn=lambda: os.close(0), stdout=subprocess.PIPE)
    assert done.returncode == 2
    assert "standard input is closed" in done.stderr


def _command(arguments: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    program = "from chatserve.cli import main; main()"
    environment = os.environ | {"PYTHONPATH": str(Path(chatserve.__file__).parent.parent)}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], stderr=subprocess.PIPE, text=True, env=environment, **options
    )


def test_the_debug_log_does_not_hold_what_is_answered() -> None:
    """What serves the stream writes every piece of it to its own debug log."""
    code = (
        "import logging, sys; from chatserve.cli.serve import _set_up_logging; _set_up_logging('debug', 'text'); "
        "sys.exit(logging.getLogger('sse_starlette.sse').isEnabledFor(logging.DEBUG))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
