"""Beam search of the default model against transformers' (see `record_beam_references`): all hypotheses, all scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chatserve.decoding import Sampling
from chatserve.engine import LLM, Completion, GenerationRequest
from chatserve.engine.llm import run_all
from tests.default_model.record_beam_references import EARLY_STOPPING, LENGTH_PENALTIES, NUM_TOKENS, WIDTHS

REFERENCES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "beam.json").read_text())
TOLERANCE = 1e-4
SETTINGS = [search["params"] for search in REFERENCES[0]["searches"]]
pytestmark = pytest.mark.timeout(900)  # a fresh machine compiles the kernels and fetches the model first


def searches(places: list[int], params: dict[str, Any], num_returned: int) -> list[GenerationRequest]:
    """Requests for the prompts at these places."""
    made = []
    for place in places:
        ends = tuple(REFERENCES[place]["end_token_ids"])
        sampling = Sampling(n=num_returned, max_tokens=NUM_TOKENS, stop_token_ids=ends, top_logprobs=0)
        prompt = tuple(REFERENCES[place]["prompt"])
        made.append(
            GenerationRequest(prompt_token_ids=prompt, sampling=sampling, decoder="beam", decoder_params=params)
        )
    return made


def compare(llm: LLM, places: list[int], params: dict[str, Any], num_returned: int) -> None:
    """Ids and scores of the best `num_returned`. Scores are compared relatively too: without a length penalty, or with
    a negative one, they are sums over all tokens, or more, and so are the rounding errors of single precision."""
    completions = run_all(llm.engine, searches(places, params, num_returned))
    for place, completion in zip(places, completions, strict=True):
        reference = REFERENCES[place]
        [expected] = [search for search in reference["searches"] if search["params"] == params]
        hypotheses = [reference["hypotheses"][number] for number in expected["hypotheses"][:num_returned]]
        scores = _scores(completion, params["length_penalty"])
        assert [output.token_ids for output in completion.outputs] == hypotheses, f"prompt {place}: {scores}"
        np.testing.assert_allclose(scores, expected["scores"][:num_returned], rtol=TOLERANCE, atol=TOLERANCE)


def _scores(completion: Completion, length_penalty: float) -> list[float]:
    return [
        sum(token.logprob or 0.0 for token in output.tokens) / len(output.tokens) ** length_penalty
        for output in completion.outputs
    ]


def test_the_references_cover_what_they_should() -> None:
    assert len(REFERENCES) == 10
    assert len(SETTINGS) == len(WIDTHS) * len(LENGTH_PENALTIES) * len(EARLY_STOPPING) == 36
    lengths = {len(answer) for reference in REFERENCES for answer in reference["hypotheses"]}
    assert len(lengths) >= 6, "hypotheses of many lengths compete"
    for reference in REFERENCES:
        per_width = [
            {tuple(search["hypotheses"]) for search in reference["searches"] if search["params"]["width"] == width}
            for width in WIDTHS
        ]
        if any(len(outcomes) > 1 for outcomes in per_width):
            break
    else:
        raise AssertionError("length penalty and stopping rule never decide anything")


@pytest.mark.parametrize(
    ("setting", "first", "num_returned"),
    [(1, 0, 2), (16, 1, 4), (21, 2, 1), (35, 3, 8), (24, 4, 5)],
)
def test_some_searches_equal_transformers(llm: LLM, setting: int, first: int, num_returned: int) -> None:
    compare(llm, [first, first + 5], SETTINGS[setting], num_returned)


@pytest.mark.full
@pytest.mark.parametrize("params", SETTINGS, ids=lambda params: "-".join(map(str, params.values())))
def test_all_searches_equal_transformers(llm: LLM, params: dict[str, Any]) -> None:
    compare(llm, list(range(len(REFERENCES))), params, params["width"])
