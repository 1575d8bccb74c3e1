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

pytestmark = pytest.mark.timeout(600)  # the first run ever compiles the step
DATA = Path(__file__).parents[1] / "default_model" / "data" / "greedy.json"
REFERENCES: list[dict[str, Any]] = json.loads(DATA.read_text())


@pytest.fixture(scope="module")
def runner() -> Runner:
    loaded = load_model(Config(device="cpu"))
    assert loaded.info.is_batch_invariant
    loaded.runner.allocate(64, 16)
    return loaded.runner


def test_the_most_likely_token_is_the_same_wherever_it_leads_by_a_hundredth(runner: Runner) -> None:
    num_tokens, num_same = 0, 0
    for reference in REFERENCES:
        prompt, answer, gaps = reference["prompt"], reference["answer"], np.array(reference["gaps"])
        wanted = list(range(len(prompt) - 1, len(prompt) + len(answer) - 1))
        logits = runner.forward(tiny.step((prompt + answer, 0, list(range(20))), wanted=wanted))
        is_same = logits.argmax(axis=1) == answer
        assert is_same[gaps >= 0.01].all()
        top = np.sort(logits, axis=1)[:, -2:]
        np.testing.assert_allclose(top[is_same, 1] - top[is_same, 0], gaps[is_same], atol=0.01)
        num_tokens, num_same = num_tokens + len(answer), num_same + int(is_same.sum())
    assert num_same >= 0.995 * num_tokens
