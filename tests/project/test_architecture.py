"""Every module says what it is. (`make lint` checks the direction of imports.)"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("chatserve", "decoders", "cuda_kernels")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_begins_with_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith('"""') or not text
