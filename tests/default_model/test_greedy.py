"""Greedy answers of the default model against those transformers gave (see `record_references`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chatserve.engine import LLM
from chatserve.errors import ContextLengthError

REFERENCES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "greedy.json").read_text())
TINY_GAP = 1e-4
pytestmark = pytest.mark.timeout(600)  # a fresh machine compiles the kernels and fetches the model first


def first_difference(ours: list[int], reference: dict[str, Any]) -> int | None:
    """Position of the first token that differs though the reference's two best logits were clearly apart."""
    for position, (mine, theirs) in enumerate(zip(ours, reference["answer"], strict=False)):
        if mine != theirs:
            return position if reference["gaps"][position] >= TINY_GAP else None
    return None if len(ours) == len(reference["answer"]) else min(len(ours), len(reference["answer"]))


def test_twenty_prompts_in_one_batch_equal_transformers_token_for_token(llm: LLM) -> None:
    completions = llm.generate([reference["prompt"] for reference in REFERENCES], temperature=0, max_tokens=64)
    differences = {
        index: (position, REFERENCES[index]["gaps"][position])
        for index, completion in enumerate(completions)
        if (position := first_difference(completion.outputs[0].token_ids, REFERENCES[index])) is not None
    }
    num_equal = sum(c.outputs[0].token_ids == r["answer"] for c, r in zip(completions, REFERENCES, strict=True))
    print(f"{num_equal} of {len(REFERENCES)} answers equal transformers in all tokens")
    assert not differences, f"prompt: (position, gap): {differences}"


def test_the_capital_of_france(llm: LLM) -> None:
    completion = llm.chat([{"role": "user", "content": "What is the capital of France?"}], temperature=0, max_tokens=20)
    assert completion.outputs[0].text == "The capital of France is Paris."
    assert completion.outputs[0].finish_reason == "stop"


def test_chunked_prefill_and_a_small_pool_change_no_token_of_the_real_model(settings: dict[str, Any]) -> None:
    """Floating-point sums may differ with the shape of a batch; only where two logits nearly tie may a token differ."""
    chosen = REFERENCES[10:14]  # short prompts with long answers
    tight = LLM(num_blocks=8, max_batch_tokens=16, **settings)
    completions = tight.generate([reference["prompt"] for reference in chosen], temperature=0, max_tokens=64)
    for reference, completion in zip(chosen, completions, strict=True):
        assert first_difference(completion.outputs[0].token_ids, reference) is None
    assert tight.stats()["preemptions"] > 0


def test_seeded_samples_are_the_same_alone_and_in_a_batch(llm: LLM) -> None:
    prompts = [reference["prompt"] for reference in REFERENCES[:8]]
    together = llm.generate(prompts, temperature=0.8, seed=7, max_tokens=24)
    alone = [llm.generate([prompt], temperature=0.8, seed=7, max_tokens=24)[0] for prompt in prompts]
    num_equal = sum(a.outputs[0].token_ids == b.outputs[0].token_ids for a, b in zip(together, alone, strict=True))
    assert num_equal >= 7, "a sampled token may differ only where the uniform number hits a boundary"


def test_logit_bias_outweighs_the_model(llm: LLM) -> None:
    completion = llm.generate(["hi"], temperature=0, max_tokens=3, logit_bias={38634: 100.0})[0]
    assert completion.outputs[0].text == "ParisParisParis"


def test_tiny_temperatures_equal_greedy(llm: LLM) -> None:
    prompt = REFERENCES[0]["prompt"]
    greedy = llm.generate([prompt], temperature=0, max_tokens=8)[0].outputs[0].token_ids
    for temperature in (1e-8, 1e-6, 1e-5, 1e-4):
        assert llm.generate([prompt], temperature=temperature, seed=1, max_tokens=8)[0].outputs[0].token_ids == greedy


def test_a_prompt_as_long_as_the_context_is_refused(llm: LLM) -> None:
    with pytest.raises(ContextLengthError, match="8192"):
        llm.generate([[5] * 8192], max_tokens=1)
