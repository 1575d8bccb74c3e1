"""`chatserve decoders check`: what it says of a sound file, and of each kind of broken one."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chatserve.cli.application import application

HEAD = "from chatserve.decoding import Context, Params, Sequence, complete, decoder\n"
SOUND = '''
class WideParams(Params, frozen=True):
    width: int = 2

@decoder("wide", params=WideParams, sequences=lambda params, n: max(n, params.width))
async def wide(ctx: Context, prompt: Sequence, params: WideParams) -> None:
    """Sample some, publish the first."""
    seqs = [prompt] + [prompt.fork() for _ in range(max(params.width, ctx.n) - 1)]
    await complete(ctx, seqs)
    for choice in range(ctx.n):
        ctx.publish(seqs[choice], choice)
'''
FAULTY = """
@decoder("Bad_Name")
async def bad(ctx: Context, prompt: Sequence, params: Params) -> None:
    [sample] = await ctx.sample([prompt])
    raise ValueError("no idea")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "plugin.py"


def check(file: Path, text: str, *options: str) -> Result:
    file.write_text(HEAD + text)
    return CliRunner().invoke(application, ["decoders", "check", str(file), *options])


def test_a_sound_decoder_is_well_with_the_parameters_given(file: Path) -> None:
    result = check(file, SOUND, "--params", '{"width": 3}', "--n", "2")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("wide  (API 1)\n  ok      The name is lower case letters, digits and dashes.\n")
    assert result.stdout.endswith("wide: all is well\n")
    assert "FAILED" not in result.stdout


def test_every_fault_is_listed_with_its_reason_and_place(file: Path) -> None:
    result = check(file, FAULTY)
    assert result.exit_code == 1
    assert (
        "  FAILED  The name is lower case letters, digits and dashes.\n            it is 'Bad_Name'\n" in result.stdout
    )
    assert "  FAILED  It says what it does.\n" in result.stdout
    assert "  ok      The parameters given are accepted, and an unknown one is refused.\n" in result.stdout
    assert "the decoder raised ValueError: no idea\n" in result.stdout
    assert f"raised at {file}:6\n" in result.stdout
    assert "checks failed" in result.stdout
    assert result.stderr == ""


def test_parameters_that_are_refused_are_a_fault(file: Path) -> None:
    result = check(file, SOUND, "--params", '{"width": "wide"}')
    assert result.exit_code == 1
    assert "Expected `int`, got `str`" in result.stdout


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = 1", "holds no decoder"),
        ("@decoder('d')\ndef d(ctx, prompt, params): pass", "must be an `async def`"),
        ("@decoder('d')\nasync def d(ctx, prompt): pass", "must take (ctx, prompt, params)"),
        ("@decoder('d', params=dict)\nasync def d(ctx, prompt, params): pass", "params must be a subclass of"),
        (
            "@decoder('d', api=7)\nasync def d(ctx, prompt, params): pass",
            "speaks decoder API 7; this chatserve speaks 1",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(file: Path, text: str, reason: str) -> None:
    result = check(file, text)
    assert result.exit_code == 1
    assert reason in result.stderr


def test_a_missing_file_and_wrong_json_are_named(file: Path) -> None:
    missing = CliRunner().invoke(application, ["decoders", "check", str(file)])
    assert missing.exit_code == 1
    assert f"no Python file at {file}" in missing.stderr
    for wrong in ("{", "[1]"):
        result = check(file, SOUND, "--params", wrong)
        assert result.exit_code == 2
        assert "--params" in result.stderr
