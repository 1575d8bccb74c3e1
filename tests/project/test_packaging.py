"""What a wheel and a source distribution contain."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT_UI = {"chatserve/server/web_dist/index.html", "chatserve/server/web_dist/assets/app-1a2b3c.js"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages with a built UI, which git ignores."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, folder)
    for name in ("chatserve", "decoders", "cuda_kernels"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "web_dist"))
    for name in BUILT_UI:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("built")
    (folder / "web" / "dist").mkdir(parents=True)
    (folder / "web" / "dist" / "index.html").write_text("an intermediate copy")
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    return folder


def build(source: Path, target: str) -> Path:
    """The one file that hatchling makes."""
    folder = source / "dist" / target
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    [made] = folder.iterdir()
    return made


def test_the_wheel_has_the_built_ui_and_nothing_of_its_sources(source: Path) -> None:
    with zipfile.ZipFile(build(source, "wheel")) as wheel:
        names = set(wheel.namelist())
    assert names >= BUILT_UI
    assert "chatserve/server/static/index.html" in names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        "chatserve",
        "decoders",
        "cuda_kernels",
    }


def test_the_source_distribution_has_the_built_ui(source: Path) -> None:
    with tarfile.open(build(source, "sdist")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert names >= BUILT_UI | {"pyproject.toml", "chatserve/server/static/index.html"}
    assert not any(name.startswith("web/dist") for name in names)
