"""Records what transformers makes of the default model's GGUF: token ids of many texts, and logits of a few prompts.

Usage: ``python -m tests.models.record_references``.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "default_model.json"
NUM_LOGITS = 8

TEXTS = [
    "1234567890", "12+34=", "don't", "  leading", "naïve — café", "a\r\nb\r\n", "\t\ttabs", "hi", "", " ", "\n",
    "👨‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 👍🏽 thumb", "x" * 50, "<|im_start|>user\nHi<|im_end|>\n", "<|im_start",
    "日本語と中文와 한국어",
    "def f(x):\n    return x ** 2  # why?\n", "e\u0301 \u00e9 \u200b\u200d\ufeff", "\x00\x01\x7f", "it's we'll I'M",
]  # fmt: skip
PROMPTS = [
    "The capital of France is",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "1, 2, 3, 4,",
    "def add(a, b):\n    return",
]


def random_texts(count: int, seed: int) -> list[str]:
    """Half words and punctuation, half any Unicode; without white space before a digit that is not a single blank.

    There transformers and the model's own tokenizer disagree: what it builds does not split digits off before anything
    else, as the pre-tokenizer named in the file ("smollm") does.
    """
    rng = random.Random(seed)
    words = ["the", " cat", " Sat", ",", ".", "'s", " 7", "42", "é", "ß", "_x", "://", '"', " don't", "\n", "😀"]
    texts: list[str] = []
    while len(texts) < count:
        if len(texts) % 2:
            text = "".join(rng.choice(words) for _ in range(rng.randrange(1, 25)))
        else:
            text = "".join(map(chr, (rng.choice(_RANGES[rng.randrange(4)]) for _ in range(rng.randrange(1, 30)))))
        if not any(
            a.isspace() and b.isspace() and c.isnumeric() for a, b, c in zip(text, text[1:], text[2:], strict=False)
        ):
            texts.append(text)
    return texts


_RANGES = [range(32, 127), range(0xA0, 0x2000), range(0x20, 0xD800), range(0xE000, 0x1FFFF)]


def record(gguf: Path) -> None:
    """Write the reference file."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    from_pretrained: Any = AutoModelForCausalLM.from_pretrained
    model: Any = from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    encoded = [[text, tokenizer(text)["input_ids"]] for text in [*TEXTS, *random_texts(400, seed=0)]]
    answers = []
    for prompt in PROMPTS:
        given = torch.tensor([tokenizer(prompt)["input_ids"]])
        with torch.inference_mode():
            logits = model(input_ids=given, attention_mask=torch.ones_like(given), use_cache=False).logits[0]
        best = logits[-1].topk(NUM_LOGITS)
        answers.append(
            {
                "ids": given[0].tolist(),
                "next_ids": logits.argmax(-1).tolist(),
                "top_ids": best.indices.tolist(),
                "top_logits": [round(value, 5) for value in best.values.tolist()],
                "mean_logit": round(logits[-1].mean().item(), 5),
            }
        )
    DATA.parent.mkdir(exist_ok=True)
    DATA.write_text(json.dumps({"encoded": encoded, "answers": answers}, separators=(",", ":")) + "\n", "ascii")


def main() -> None:
    from chatserve.models.cache_folder import cache_folder
    from chatserve.models.default_model import fetch_default_model

    record(fetch_default_model(cache_folder()))


if __name__ == "__main__":
    main()
