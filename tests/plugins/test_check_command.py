"""`chatserve decoders check`: what it says of a sound file, and of each kind of broken one."""

from __future__ import annotations

import re
import textwrap
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
@decoder("bad")
async def bad(ctx: Context, prompt: Sequence, params: Params) -> None:
    [sample] = await ctx.sample([prompt])
    raise ValueError(f"no idea of {sample.token}")
"""
BAD_PARTS = {  # the body of a decoder: what is said of it, once, and at which of its lines
    "prompt.free()\nawait ctx.sample([prompt])": ("the request failed: a named sequence was freed", 2),
    "prompt.append('hello')": ("the request failed: 'h' is not a token id", 1),
    "prompt.append(ctx.sample([prompt]))": ("the request failed: forgot `await` before a call of the context", 1),
    "await ctx.sample(prompt)": ("the request failed: name sequences as a list, such as [seq]", 1),
    "await asyncio.sleep(0)": ("the request failed: a decoder awaited NoneType, which is not of its context", 1),
    "while True:\n    pass": ("the request failed: the decoder was interrupted: it ran for 1 s without yielding", None),
    "await ctx.sample([prompt])\nwhile True:\n    pass": ("the request failed: the decoder was interrupted", None),
    "complete(ctx, [prompt])\nctx.publish(prompt)": (
        "coroutine 'complete' was never awaited: an `await` is missing",
        1,
    ),
    "rest = complete(ctx, [prompt])\nprompt.append('x')": ("coroutine 'complete' was never awaited", 1),
    "while not prompt.ended:\n    await ctx.sample([prompt])": (
        "the request failed: 256 awaits in which no sequence changed: was `append` forgotten?",
        2,
    ),
    "await complete(ctx, [prompt])": ("the request failed: the decoder returned without publishing choice 0", None),
}
PART_HEAD = HEAD + "import asyncio\n\n@decoder('part')\nasync def part(ctx, prompt, params):\n    'A part.'\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "plugin.py"


def check(file: Path, text: str, *options: str) -> Result:
    file.write_text(HEAD + text)
    return CliRunner().invoke(application, ["decoders", "check", str(file), *options])


def test_a_sound_decoder_is_well_with_the_parameters_given(file: Path) -> None:
    result = check(file, SOUND, "--params", '{"width": 3}', "--n", "2")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("wide  (API 1)\n  ok      It says what it does.\n")
    assert result.stdout.endswith("wide: all is well\n")
    assert "FAILED" not in result.stdout


def test_every_fault_is_listed_with_its_reason_and_place(file: Path) -> None:
    result = check(file, FAULTY)
    assert result.exit_code == 1
    assert "  FAILED  It says what it does.\n" in result.stdout
    assert "  ok      The parameters given are accepted, and an unknown one is refused.\n" in result.stdout
    assert "[1] the request failed: the decoder raised ValueError: no idea of " in result.stdout
    assert result.stdout.count(f"raised at {file}:6\n") == 1
    assert result.stderr == ""


@pytest.mark.parametrize("body", BAD_PARTS)
def test_a_fault_is_told_once_and_soon_enough(file: Path, body: str) -> None:
    reason, line = BAD_PARTS[body]
    file.write_text(PART_HEAD + textwrap.indent(body, "    "))
    result = CliRunner().invoke(application, ["decoders", "check", str(file)])
    assert result.exit_code == 1
    assert result.stdout.count(f"[1] {reason}") == 1
    assert result.stdout.count(reason) == 1
    assert result.stdout.count("[1] again") == 2
    assert "3 checks failed ([1] in 3 of them); 17 were not tried" in result.stdout
    places = re.findall(r"(?:raised|made) at (.+)", result.stdout)
    assert all(place.startswith(f"{file}:") for place in places)
    if line is not None:
        assert places == [f"{file}:{PART_HEAD.count(chr(10)) + line}"]
    assert result.stderr == ""


def test_returning_before_the_end_is_called_that(file: Path) -> None:
    body = "await complete(ctx, [prompt], until=lambda seq: len(seq.generated) == 3)\nctx.publish(prompt)"
    file.write_text(PART_HEAD + textwrap.indent(body, "    "))
    result = CliRunner().invoke(application, ["decoders", "check", str(file)])
    assert result.exit_code == 1
    told = "it returned before the choice had ended (by end token, stop string or length): 3 tokens of 8 were published"
    assert result.stdout.count(told) == 1
    assert "the reason should be" not in result.stdout
    assert "Answer(" not in result.stdout
    assert "with n = 2, the request failed: the decoder returned without publishing choice 1" in result.stdout


@pytest.mark.parametrize("ending", ["", "ctx.finish()"])
def test_an_end_of_its_own_is_fine_where_it_is_meant(file: Path, ending: str) -> None:
    body = (
        "if ctx.n > 1:\n    raise Rejected('n', 'must be 1')\n"
        f"await complete(ctx, [prompt], until=lambda seq: len(seq.generated) == 3, publish=True)\n{ending}"
    )
    head = PART_HEAD.replace("Params,", "Params, Rejected,", 1)
    file.write_text(head + textwrap.indent(body, "    "))
    result = CliRunner().invoke(application, ["decoders", "check", str(file), "--ends-by-itself"])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(application, ["decoders", "check", str(file)])
    assert result.exit_code == 1
    assert f"it {'called `finish`' if ending else 'returned'} before the choice had ended" in result.stdout
    assert "--ends-by-itself" in result.stdout


def test_a_failure_of_the_model_is_not_held_against_a_line_of_ours(file: Path) -> None:
    forgets_nothing = "while not prompt.ended:\n    prompt.append(await ctx.sample([prompt]))\nctx.publish(prompt)"
    remembers = "TURNS.append(1)\nprompt.append(65 + len(TURNS) % 26)\n"
    file.write_text("TURNS = []\n" + PART_HEAD + textwrap.indent(remembers + forgets_nothing, "    "))
    result = CliRunner().invoke(application, ["decoders", "check", str(file)])
    assert "  FAILED  When a forward raises" in result.stdout
    assert "raised at" not in result.output


def test_one_broken_decoder_of_a_file_does_not_hide_the_others(file: Path) -> None:
    result = check(file, SOUND + FAULTY.replace('"bad"', '"Bad_Name"'))
    assert result.exit_code == 1
    assert "wide: all is well\n" in result.stdout
    assert "Bad_Name is broken: the name 'Bad_Name' must be lower case letters, digits and dashes" in result.stderr


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
        ("@decoder\nasync def d(ctx, prompt, params): pass", 'use @decoder("name") (plugin.py:2)'),
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
