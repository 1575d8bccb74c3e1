"""`web/build.py`: which Node.js it takes, and that a failed build leaves what was there."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

SCRIPT = Path(__file__).parents[2] / "web" / "build.py"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The build script over an empty source folder, with no Node.js on the path and none to be had."""
    spec = importlib.util.spec_from_file_location("web_build", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "WEB", tmp_path / "web")
    monkeypatch.setattr(module, "SERVED", tmp_path / "served")
    monkeypatch.setattr(module, "_NODE_PACKAGE", "--no-such-option")  # pip refuses at once
    monkeypatch.setattr(module, "_packaged_node", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return module


def put_node(folder: Path, version: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, line in (("node", f"echo {version}"), ("npm", "exit 1")):
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)


def test_the_node_on_the_path_is_taken_when_it_is_new_enough(script: ModuleType, tmp_path: Path) -> None:
    put_node(tmp_path / "bin", "v20.19.0")
    assert script.node_folder() == tmp_path / "bin"
    assert script.node_version(tmp_path / "bin") == (20, 19, 0)


def test_an_older_one_gives_way_to_the_packaged_one(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_node(tmp_path / "bin", "v18.20.1")
    put_node(tmp_path / "packaged", "v24.1.0")
    monkeypatch.setattr(script, "_packaged_node", lambda: tmp_path / "packaged")
    assert script.node_folder() == tmp_path / "packaged"


def test_without_any_the_failure_is_told_and_optional_makes_it_none(
    script: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--optional"]) == 0
    assert "no Node.js on the path, and none could be installed" in capfd.readouterr().err
    assert script.main([]) == 1


def test_the_served_folder_is_exchanged_as_a_whole(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(folder: Path, *arguments: str) -> None:
        (tmp_path / "web" / "dist").mkdir(parents=True, exist_ok=True)
        (tmp_path / "web" / "dist" / "index.html").write_text("new")

    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "old.js").write_text("old")
    monkeypatch.setattr(script, "_npm", write)
    script.build(tmp_path)
    assert [path.name for path in (tmp_path / "served").iterdir()] == ["index.html"]


def test_a_failed_build_leaves_what_was_served(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path, *arguments: str) -> NoReturn:
        raise script.BuildError("it does not compile")

    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "index.html").write_text("old")
    put_node(tmp_path / "bin", "v22.0.0")
    monkeypatch.setattr(script, "_npm", fail)
    assert script.main([]) == 1
    assert (tmp_path / "served" / "index.html").read_text() == "old"
