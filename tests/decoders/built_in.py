"""The built-in decoders, each with parameters that make it work, and requests for them."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from chatserve.decoding import Decoder, Sampling
from chatserve.engine import GenerationRequest
from chatserve.testing import TrialEngine

BUILT_IN: dict[str, Decoder] = {
    point.name: point.load()
    for point in entry_points(group="chatserve.decoders")
    if point.dist is not None and point.dist.name == "chatserve"
}

CASES: dict[str, tuple[dict[str, Any], int]] = {
    "beam": ({"width": 3}, 2),
    "best-of": ({}, 2),
    "majority": ({"pattern": "[aeiou]"}, 1),
    "parallel": ({}, 3),
    "shared-prefix": ({"prefix": "manners"}, 2),
}
"""Parameters and n; other decoders run with their defaults and n = 1."""


def register_prefix(engine: TrialEngine) -> None:
    """Pins 15 tokens, so that the last block of 4 is shared while it is not full."""
    engine.register_prefix("manners", tuple(b"Be polite, now "), lambda news: None)
    while engine.step():
        pass


def request(
    name: str,
    *,
    prompt: bytes = b"the cat sat on the mat, the cat ",
    params: dict[str, Any] | None = None,
    return_trace: bool = False,
    **sampling: Any,
) -> GenerationRequest:
    """A request for the decoder; fields of `Sampling` by name."""
    return GenerationRequest(
        prompt_token_ids=tuple(prompt),
        sampling=Sampling(**sampling),
        decoder=name,
        decoder_params=params or {},
        return_trace=return_trace,
    )
