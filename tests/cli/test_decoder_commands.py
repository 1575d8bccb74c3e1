"""`chatserve decoders`: the built-in ones, one from a file, and a broken one."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from chatserve.cli.application import application

PLUGIN = '''
from typing import Annotated
from msgspec import Meta
from chatserve.decoding import Context, Params, Sequence, decoder

class TwiceParams(Params):
    width: Annotated[int, Meta(ge=1, le=8, description="How many.")] = 4
    mode: str = "fast"

@decoder("twice", params=TwiceParams)
async def twice(ctx: Context, prompt: Sequence, params: TwiceParams) -> None:
    """Says it twice.

    And then once more.
    """
'''


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    file = tmp_path / "twice.py"
    file.write_text(PLUGIN)
    return str(file)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(application, ["decoders", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_list_names_the_built_in_decoders_with_their_first_line() -> None:
    lines = dict(line.split(maxsplit=1) for line in run("list").splitlines())
    assert {"greedy", "sampling", "parallel"} <= lines.keys()
    assert lines["parallel"].startswith("Parallel sampling: n answers")


def test_list_shows_a_file_s_decoder_and_why_another_is_broken(plugin: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_module")
    lines = run("list", "--decoders", plugin, "--decoders", str(broken)).splitlines()
    assert any(line.split(maxsplit=1) == ["twice", "Says it twice."] for line in lines)
    assert any(line.startswith("broken") and "No module named 'no_such_module'" in line for line in lines)


def test_show_prints_the_documentation_and_the_parameters(plugin: str) -> None:
    shown = run("show", "twice", "--decoders", plugin)
    assert "Says it twice.\n\nAnd then once more.\n" in shown
    assert "  width  integer, at least 1, at most 8, default 4.  How many.\n" in shown
    assert "  mode  string, default fast.\n" in shown


def test_show_says_when_there_are_no_parameters() -> None:
    assert run("show", "greedy").endswith("No parameters.\n")


def test_show_of_an_unknown_name_lists_what_there_is() -> None:
    result = CliRunner().invoke(application, ["decoders", "show", "gredy"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: decoder 'gredy' is not known; there are: ")
    assert "greedy" in result.stderr
