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
    assert '  mode  string, default "fast".\n' in shown


VALUES = """
from enum import Enum
from typing import Annotated, Any, Literal
from msgspec import Meta
from chatserve.decoding import Context, Params, Sequence, decoder

class Way(Enum):
    UP = "up"
    DOWN = "down"

class ManyParams(Params, frozen=True):
    one: Literal["only"] = "only"
    some: Literal["x", "y"] = "x"
    mixed: bool | Literal["never"] | None = None
    way: Way = Way.UP
    ways: list[Way] = []
    text: Annotated[str, Meta(max_length=4, pattern="^a")] = "a"
    flag: bool = False
    numbers: list[int] | None = None
    ratio: Annotated[float, Meta(gt=0, lt=1)] | Literal["auto"] = "auto"
    anything: Any = None

@decoder("many", params=ManyParams)
async def many(ctx: Context, prompt: Sequence, params: ManyParams) -> None: ...
"""


def test_show_prints_the_allowed_values_of_every_kind_of_parameter(tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text(VALUES)
    shown = run("show", "many", "--decoders", str(tmp_path / "many.py"))
    assert [line.strip() for line in shown.partition("Parameters:\n")[2].splitlines()] == [
        'one  "only", default "only".',
        'some  one of "x", "y", default "x".',
        'mixed  boolean or "never" or null, default null.',
        'way  one of "down", "up", default "up".',
        'ways  array of one of "down", "up", default [].',
        'text  string, at most 4 characters, matching ^a, default "a".',
        "flag  boolean, default false.",
        "numbers  array of integer or null, default null.",
        'ratio  number, above 0, below 1 or "auto", default "auto".',
        "anything  any value, default null.",
    ]


def test_show_leaves_no_question_open_for_any_built_in_decoder() -> None:
    names = [line.split()[0] for line in run("list").splitlines()]
    shown = {name: run("show", name) for name in names}
    lines = [line for text in shown.values() for line in text.partition("Parameters:")[2].splitlines()]
    assert not [line for line in lines if "?" in line.partition(", default")[0]]
    assert 'early_stopping  boolean or "never", default false.' in shown["beam"]


def test_show_says_when_there_are_no_parameters() -> None:
    assert run("show", "greedy").endswith("No parameters.\n")


def test_show_of_an_unknown_name_lists_what_there_is() -> None:
    result = CliRunner().invoke(application, ["decoders", "show", "gredy"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: decoder 'gredy' is not known; there are: ")
    assert "greedy" in result.stderr
