"""All built-in decoders pass the conformance suite that is shipped for plugins."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, ClassVar

import pytest

from chatserve.decoding import Decoder
from chatserve.testing import DecoderConformance

BUILT_IN: dict[str, Decoder] = {
    point.name: point.load()
    for point in entry_points(group="chatserve.decoders")
    if point.dist is not None and point.dist.name == "chatserve"
}


class TestGreedy(DecoderConformance):
    decoder = BUILT_IN["greedy"]


class TestSampling(DecoderConformance):
    decoder = BUILT_IN["sampling"]


class TestParallel(DecoderConformance):
    decoder = BUILT_IN["parallel"]
    n = 3


class TestBeam(DecoderConformance):
    decoder = BUILT_IN["beam"]
    params: ClassVar[dict[str, Any]] = {"width": 3}
    n = 2


class TestBestOf(DecoderConformance):
    decoder = BUILT_IN["best-of"]
    n = 2


class TestMajority(DecoderConformance):
    decoder = BUILT_IN["majority"]
    params: ClassVar[dict[str, Any]] = {"pattern": "[aeiou]"}


class TestSpeculative(DecoderConformance):
    decoder = BUILT_IN["speculative"]


class TestGuidance(DecoderConformance):
    decoder = BUILT_IN["guidance"]

    @pytest.mark.xfail(reason="a token that both prompts forbid becomes NaN: -inf minus -inf")
    def test_forbidden_tokens_are_never_published(self) -> None:
        super().test_forbidden_tokens_are_never_published()


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
    attributes = {"decoder": BUILT_IN[name], "params": params, "n": n, "num_seeds": 10, "max_tokens": 24}
    getattr(type("Suite", (DecoderConformance,), attributes)(), test)()


def test_every_built_in_decoder_is_here() -> None:
    tested = {
        value.decoder.name for value in globals().values() if isinstance(value, type) and hasattr(value, "decoder")
    }
    assert tested == BUILT_IN.keys()
