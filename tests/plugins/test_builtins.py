"""All built-in decoders pass the conformance suite that is shipped for plugins."""

from __future__ import annotations

from typing import Any

import pytest

from chatserve.testing import DecoderConformance, TrialEngine
from tests.decoders.built_in import BUILT_IN, CASES, register_prefix


def suite(name: str, **attributes: Any) -> type[DecoderConformance]:
    params, n = CASES.get(name, ({}, 1))
    title = "Test" + "".join(part.capitalize() for part in name.split("-"))
    return type(title, (DecoderConformance,), {"decoder": BUILT_IN[name], "params": params, "n": n, **attributes})


def prepare(suite: DecoderConformance, engine: TrialEngine) -> None:
    register_prefix(engine)


globals().update({made.__name__: made for made in map(suite, BUILT_IN)})


class TestSharedPrefix(suite("shared-prefix", prepare=prepare)):  # type: ignore[misc]
    pass


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("test", [name for name, _ in DecoderConformance.titles()])
@pytest.mark.parametrize(
    ("name", "params", "n"),
    [
        ("parallel", {}, 6),
        ("beam", {"width": 8, "early_stopping": True}, 4),
        ("beam", {"width": 5, "early_stopping": "never", "length_penalty": 2.0}, 1),
        ("best-of", {"best_of": 7}, 3),
        ("majority", {"votes": 4, "pattern": "[aeiou]"}, 1),
        ("speculative", {"ngram": 1, "draft": 16}, 1),
    ],
)
def test_long_answers_and_many_seeds(name: str, params: dict[str, Any], n: int, test: str) -> None:
    getattr(suite(name, params=params, n=n, num_seeds=10, max_tokens=24)(), test)()
