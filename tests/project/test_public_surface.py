"""What users may import. A change here is a change of the API: it belongs into CHANGELOG.md."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

import pytest

from chatserve.decoding import Context, Decoder, SearchTree, Sequence

SURFACE = {
    "chatserve.decoding": [
        "Context",
        "Decoder",
        "DecoderError",
        "Params",
        "Registry",
        "Rejected",
        "Sample",
        "Sampling",
        "SearchTree",
        "Sequence",
        "TopK",
        "common_length",
        "complete",
        "decoder",
        "derive_seed",
    ],
    "chatserve.engine": [
        "LLM",
        "AsyncEngine",
        "AsyncLLM",
        "Completion",
        "Delta",
        "Engine",
        "EngineLimits",
        "Generation",
        "GenerationRequest",
        "Output",
        "PublishedToken",
        "TokenLogprob",
        "Usage",
    ],
    "chatserve.server": ["create_app", "serve"],
    "chatserve.cli": ["main"],
}
METHODS = {
    Context: "draw finish gather logits prefix publish sample score sequence tokenize topk trace verify",
    SearchTree: "add change conclude drop step",
    Sequence: "append fork free generated is_freed mean_logprob num_generated samples text tokens truncate",
}


@pytest.mark.parametrize("module", SURFACE)
def test_a_package_exports_exactly_this(module: str) -> None:
    assert importlib.import_module(module).__all__ == SURFACE[module]


@pytest.mark.parametrize("module", SURFACE)
def test_every_export_is_documented(module: str) -> None:
    package = importlib.import_module(module)
    undocumented = [name for name in SURFACE[module] if not getattr(package, name).__doc__]
    assert undocumented == []


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
def test_what_a_decoder_may_call_and_read(kind: type) -> None:
    members = [name for name, value in vars(kind).items() if callable(value) or isinstance(value, property)]
    assert sorted(name for name in members if not name.startswith("_")) == METHODS[kind].split()


def test_the_built_in_decoders_are_entry_points_like_anybody_s() -> None:
    found = {point.name: point.load() for point in entry_points(group="chatserve.decoders")}
    assert found.keys() >= {"greedy", "parallel", "sampling"}
    assert all(isinstance(made, Decoder) and made.name == name for name, made in found.items())
