"""Finding decoders: entry points, files, broken ones, name clashes, and what is told of them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta

from chatserve.decoding import Context, Params, Registry, Sequence, decoder
from chatserve.errors import ConfigError, RequestError
from tests.decoding.harness import PROMPT, make_engine, request, run

PLUGIN = """
from typing import Annotated
from msgspec import Meta
from chatserve.decoding import Context, Params, Sequence, decoder

class EchoParams(Params):
    times: Annotated[int, Meta(ge=1, le=9, description="How often.")] = 1

@decoder("echo", params=EchoParams)
async def echo(ctx: Context, prompt: Sequence, params: EchoParams) -> None:
    \"\"\"Says the prompt again.\"\"\"
    prompt.append(prompt.tokens * params.times)
    ctx.publish(prompt)
"""


async def body(ctx: Context, prompt: Sequence, params: Any) -> None:
    """Publishes nothing new."""
    ctx.publish(prompt)


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_the_built_in_decoders_are_found_by_their_entry_points() -> None:
    found = {info.id: info for info in Registry.load().list()}
    assert {"greedy", "sampling", "parallel"} <= found.keys()
    greedy = found["greedy"]
    assert (greedy.state, greedy.reason, greedy.api, greedy.distribution) == ("ready", None, 1, "chatserve")
    assert greedy.description.startswith("Greedy decoding")
    assert greedy.version


def test_a_file_brings_its_decoders(tmp_path: Path) -> None:
    registry = Registry.load([write(tmp_path, "plugin.py", PLUGIN)], strict=True)
    echo = registry.get("echo")
    [completion] = run(make_engine(echo), request("echo", decoder_params={"times": 2}))
    assert completion.outputs[0].token_ids == [*PROMPT, *PROMPT]
    info = next(info for info in registry.list() if info.id == "echo")
    assert info.description == "Says the prompt again."
    times = next(iter(info.parameters["$defs"].values()))["properties"]["times"]
    assert times == {"type": "integer", "minimum": 1, "maximum": 9, "description": "How often.", "default": 1}


@pytest.mark.parametrize(
    ("given", "message"), [({"times": 10}, "<= 9"), ({"times": 1.5}, "int"), ({"time": 1}, "unknown field `time`")]
)
def test_parameters_are_checked_before_anything_runs(given: dict[str, Any], message: str) -> None:
    class Times(Params, frozen=True):
        times: Annotated[int, Meta(le=9)] = 1

    with pytest.raises(RequestError, match=message) as caught:
        decoder("times", params=Times)(body).make_params(given)
    assert str(caught.value.param).startswith("decoder_params")
    assert "'times'" in caught.value.message


def test_where_the_parameters_own_check_broke_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Fussy(Params, frozen=True):
        times: int = 1

        def __post_init__(self) -> None:
            if self.times == 0:
                raise ValueError("must not be 0")
            assert {1: "once"}[self.times]

    fussy = decoder("fussy", params=Fussy)(body)
    with pytest.raises(RequestError, match="must not be 0"):
        fussy.make_params({"times": 0})
    assert caplog.text == "", "a refusal is no fault of the decoder"
    with pytest.raises(RequestError, match="refused by decoder 'fussy': KeyError"):
        fussy.make_params({"times": 2})
    assert "in __post_init__" in caplog.text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_module_anywhere", "ModuleNotFoundError"),
        ("def (", "SyntaxError"),
        ("x = 1", "holds no decoder"),
        ("import sys\nsys.exit(3)", "SystemExit(3)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("from chatserve.decoding import decoder\n@decoder('d')\ndef d(ctx, prompt, params): ...", "`async def`"),
        ("from chatserve.decoding import decoder\n@decoder('d')\nasync def d(ctx, prompt): ...", "must take"),
        (
            "from chatserve.decoding import decoder\n@decoder('d', params=dict)\nasync def d(c, p, q): ...",
            "subclass of chatserve.decoding.Params",
        ),
        (
            "from chatserve.decoding import decoder\n\n@decoder\nasync def d(ctx, prompt, params): ...",
            'use @decoder("name") (wrong.py:3)',
        ),
        ("x = 1\ny = x / 0", "ZeroDivisionError: division by zero (wrong.py:2)"),
        ("import json\njson.loads('{')", "column 2 (char 1) (wrong.py:2)"),
    ],
)
def test_a_broken_file_is_listed_and_fatal_only_when_strict(tmp_path: Path, text: str, reason: str) -> None:
    file = write(tmp_path, "wrong.py", text)
    registry = Registry.load([file])
    info = next(info for info in registry.list() if info.id == "wrong")
    assert (info.state, info.distribution) == ("broken", file)
    assert info.reason is not None
    assert reason in info.reason
    with pytest.raises(RequestError, match="'wrong' is broken") as caught:
        registry.get("wrong")
    assert caught.value.code == "decoder_broken"
    registry.get("greedy")
    with pytest.raises(ConfigError, match="broken decoder wrong"):
        Registry.load([file], strict=True)


@pytest.mark.parametrize("text", ["while True:\n    pass", "import time\ntime.sleep(1)"])
def test_an_import_that_does_not_end_is_broken_and_stopped(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, "endless.py", text)
    registry = Registry(import_timeout=0.1)
    registry.load_file(file)
    [info] = registry.list()
    assert (info.id, info.state, info.reason) == ("endless", "broken", "TimeoutError: did not end within 0.1 s")
    left = [thread for thread in threading.enumerate() if thread.name == "chatserve-plugin"]
    for thread in left:
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    "name", ["", "Mine", "my_decoder", "my decoder", "-mine", "mine-", "my--one", "7up", "größe", "mine\n", "a/b"]
)
def test_a_name_that_breaks_the_rule_is_broken(name: str) -> None:
    registry = Registry()
    registry.add(decoder(name)(body))
    [info] = registry.list()
    assert (info.id, info.state) == (name, "broken")
    assert info.reason == f"the name {name!r} must be lower case letters, digits and dashes, beginning with a letter"
    with pytest.raises(RequestError, match="is broken"):
        registry.get(name)


@pytest.mark.parametrize("name", ["a", "mine", "my-one", "top-p2", "v2-3"])
def test_a_name_by_the_rule_is_ready(name: str) -> None:
    registry = Registry()
    registry.add(decoder(name)(body))
    assert registry.get(name).name == name


@pytest.mark.parametrize("text", ["import no_such_module_anywhere", "x = 1"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_broken_file_takes_no_name_away(tmp_path: Path, text: str, is_first: bool) -> None:
    registry, file = Registry(), write(tmp_path, "mine.py", text)
    if is_first:
        registry.load_file(file)
    registry.add(decoder("mine")(body), distribution="sound")
    if not is_first:
        registry.load_file(file)
    assert [(info.id, info.state) for info in registry.list()] == [("mine", "ready"), (f"mine ({file})", "broken")]


def test_another_api_version_takes_no_name_away() -> None:
    registry = Registry()
    registry.add(decoder("mine")(body), distribution="one")
    registry.add(decoder("mine", api=2)(body), distribution="two")
    assert [(info.id, info.state) for info in registry.list()] == [("mine", "ready"), ("mine (two)", "broken")]


@pytest.mark.parametrize("strict", [False, True])
def test_a_file_that_is_not_there_is_a_slip_of_whoever_named_it(tmp_path: Path, strict: bool) -> None:
    with pytest.raises(ConfigError, match=r"decoders: no Python file at .*absent\.py"):
        Registry.load([str(tmp_path / "absent.py")], strict=strict)


def test_another_api_version_is_refused_with_both_versions() -> None:
    registry = Registry()
    registry.add(decoder("future", api=2)(body))
    with pytest.raises(RequestError, match="speaks decoder API 2; this chatserve speaks 1"):
        registry.get("future")
    assert [(info.id, info.state) for info in registry.list()] == [("future", "broken")]


def test_the_first_of_two_decoders_with_one_name_is_kept() -> None:
    registry = Registry()
    first, second = decoder("twin")(body), decoder("twin")(body)
    registry.add(first, distribution="one")
    registry.add(second, distribution="two")
    assert registry.get("twin") is first
    broken = next(info for info in registry.list() if info.state == "broken")
    assert broken.id == "twin (two)"
    assert broken.reason == "the name 'twin' is taken by one"
