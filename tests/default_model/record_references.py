"""Records, with transformers, the greedy answers of the default model.

Usage: ``python -m tests.default_model.record_references``. Transformers reads the same GGUF by its own code. For every
token the gap between the two best logits is recorded too: where it is tiny, rounding may decide otherwise.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "greedy.json"
NUM_TOKENS = 64

QUESTIONS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain what a binary search does.",
    "List three fruits that are red.",
    "Who wrote Romeo and Juliet?",
    "Translate 'good morning' into Spanish.",
    "What is 12 times 7?",
    "Give me a recipe for pancakes.",
    "Why is the sky blue?",
    "Tell me a short story about a fox.",
]
TEXTS = [
    "Once upon a time",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "def fibonacci(n):\n    ",
    "In the beginning the Universe was created.",
    "1, 2, 3, 4, 5,",
    "The three laws of thermodynamics state that",
    "Dear Sir or Madam,\n\nI am writing to",
    "import numpy as np\n\nx = np.",
    "La capitale de la France est",
    "A B C D E F G",
]


def record() -> None:
    """Write prompts, answers and gaps; the end token ends an answer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from chatserve.models.cache_folder import cache_folder
    from chatserve.models.default_model import fetch_default_model

    gguf = fetch_default_model(cache_folder())
    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in QUESTIONS
    ] + [tokenizer(text)["input_ids"] for text in TEXTS]
    answers = [_greedy(model, prompt) for prompt in prompts]
    DATA.parent.mkdir(exist_ok=True)
    DATA.write_text(json.dumps(answers, separators=(",", ":")) + "\n")


def _greedy(model: Any, prompt: list[int]) -> dict[str, Any]:
    import torch

    given = torch.tensor([prompt])
    generated = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        do_sample=False,
        max_new_tokens=NUM_TOKENS,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.stack(generated.logits)[:, 0].topk(2).values
    return {
        "prompt": prompt,
        "answer": generated.sequences[0, len(prompt) :].tolist(),
        "gaps": [round(gap, 6) for gap in (best[:, 0] - best[:, 1]).tolist()],
    }


if __name__ == "__main__":
    record()
