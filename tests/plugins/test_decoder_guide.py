"""docs/decoders.md: its code runs, its decoders conform, and its reference names everything that is public."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import chatserve.decoding
from chatserve.decoding import Context, Decoder, SearchTree, Sequence
from chatserve.testing import DecoderConformance

GUIDE = Path(__file__).parents[2] / "docs" / "decoders.md"
TEXT = GUIDE.read_text(encoding="utf-8")
DECODERS = ["my_greedy", "my_top_p", "look_ahead", "self_check"]


@cache
def namespace() -> dict[str, Any]:
    """What is defined after all Python blocks have run, top to bottom, as a reader would."""
    names: dict[str, Any] = {"__name__": "guide"}
    for source in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(source, str(GUIDE), "exec", dont_inherit=True), names)
    return names


def test_the_guide_has_these_decoders() -> None:
    assert [name for name, value in namespace().items() if isinstance(value, Decoder)] == DECODERS


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("test", [name for name, _ in DecoderConformance.titles()])
def test_its_decoders_pass_the_suite(name: str, test: str) -> None:
    attributes = {"decoder": namespace()[name], "num_seeds": 1, "max_tokens": 6}
    getattr(type("Suite", (DecoderConformance,), attributes)(), test)()


def test_the_suite_it_shows_is_one() -> None:
    shown = namespace()["TestLookAhead"]
    assert issubclass(shown, DecoderConformance)
    shown().test_the_same_seed_gives_the_same_answer()


def test_the_first_decoder_has_ten_lines_or_fewer() -> None:
    first = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize("kind", [Context, SearchTree, Sequence], ids=lambda kind: kind.__name__)
def test_the_reference_names_every_method(kind: type) -> None:
    reference = TEXT.partition("## Reference")[2].partition("## What a decoder must not do")[0]
    members = [name for name, value in vars(kind).items() if callable(value) or isinstance(value, property)]
    missing = [name for name in members if not name.startswith("_") and not re.search(rf"`{name}[`(]", reference)]
    assert missing == []


def test_the_reference_names_every_export() -> None:
    missing = [name for name in chatserve.decoding.__all__ if not re.search(rf"\b{name}\b", TEXT)]
    assert missing == []


def test_the_entry_point_it_shows_is_valid() -> None:
    [shown] = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert tomllib.loads(shown)["project"]["entry-points"]["chatserve.decoders"]
