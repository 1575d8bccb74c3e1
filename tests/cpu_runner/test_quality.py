"""The default model with its own 4-bit blocks keeps to what transformers says in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chatserve.config import Config
from chatserve.models.loading import load_model
from chatserve.models.runner import Runner
from tests.cpu_runner import tiny_models as tiny
from tests.cpu_runner.record_references import RECORD

pytestmark = pytest.mark.timeout(600)  # the first run ever compiles the step
GREEDY = Path(__file__).parents[1] / "default_model" / "data" / "greedy.json"
ANSWERS: list[dict[str, Any]] = json.loads(GREEDY.read_text())
TEXT: list[dict[str, Any]] = json.loads(RECORD.read_text())


def load(**settings: Any) -> Runner:
    loaded = load_model(Config(device="cpu", **settings))
    assert loaded.info.is_batch_invariant
    loaded.runner.allocate(64, 16)
    return loaded.runner


def test_the_most_likely_token_is_the_same_wherever_it_leads_by_a_hundredth() -> None:
    runner = load(activations="int16", kv_dtype="float32")
    num_tokens, num_same = 0, 0
    for reference in ANSWERS:
        prompt, answer, gaps = reference["prompt"], reference["answer"], np.array(reference["gaps"])
        wanted = list(range(len(prompt) - 1, len(prompt) + len(answer) - 1))
        logits = runner.forward(tiny.step((prompt + answer, 0, list(range(20))), wanted=wanted))
        is_same = logits.argmax(axis=1) == answer
        assert is_same[gaps >= 0.01].all()
        top = np.sort(logits, axis=1)[:, -2:]
        np.testing.assert_allclose(top[is_same, 1] - top[is_same, 0], gaps[is_same], atol=0.01)
        num_tokens, num_same = num_tokens + len(answer), num_same + int(is_same.sum())
    assert num_same >= 0.995 * num_tokens


@pytest.mark.parametrize(
    ("settings", "agreement", "excess"),
    [
        pytest.param({}, 0.97, 0.01, id="by default"),
        pytest.param({"activations": "int16"}, 0.997, 1e-4, id="in 16 bits", marks=pytest.mark.full),
    ],
)
def test_a_text_is_as_likely_as_in_float32(settings: dict[str, Any], agreement: float, excess: float) -> None:
    """`excess` bounds how much larger the perplexity is, `agreement` the share of equal most likely tokens."""
    runner = load(**settings)
    num_places = num_same = 0
    surprise = expected = 0.0
    for window in TEXT:
        token_ids, num_next = window["token_ids"], len(window["token_ids"]) - 1
        logits = runner.forward(tiny.step((token_ids, 0, list(range(32))), wanted=list(range(num_next))))
        largest = logits.max(axis=1)
        totals = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))
        surprise += float((totals - logits[np.arange(num_next), token_ids[1:]]).sum())
        expected += window["surprise"]
        num_same += int((logits.argmax(axis=1) == window["most_likely"]).sum())
        num_places += num_next
    assert num_same >= agreement * num_places
    assert np.exp((surprise - expected) / num_places) <= 1 + excess
