"""The direction of imports, as the contracts in pyproject.toml state it, and that every module says what it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("chatserve", "decoders", "cuda_kernels")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def test_imports_follow_the_contracts() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_begins_with_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith('"""') or not text
