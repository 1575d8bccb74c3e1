"""Records, with transformers, what the default model says about a public-domain text in float32.

Usage: ``python -m tests.cpu_runner.record_references``. Transformers reads the same GGUF by its own code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data"
TEXT, RECORD = FOLDER / "public_domain.txt", FOLDER / "quality.json"
WINDOW = 512
"""Tokens that are read at once; each window starts anew."""


def record() -> None:
    """Write for each window its token ids, the most likely next token at each place, and the sum of -ln p(next)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from chatserve.models.cache_folder import cache_folder
    from chatserve.models.default_model import fetch_default_model

    gguf = fetch_default_model(cache_folder())
    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    token_ids = tokenizer(TEXT.read_text(encoding="utf-8"))["input_ids"]
    windows = []
    for start in range(0, len(token_ids), WINDOW):
        window = torch.tensor(token_ids[start : start + WINDOW])
        with torch.inference_mode():
            logprobs = model(window[None]).logits[0, :-1].log_softmax(dim=-1)
        windows.append(
            {
                "token_ids": window.tolist(),
                "most_likely": logprobs.argmax(dim=-1).tolist(),
                "surprise": round(-float(logprobs.gather(1, window[1:, None]).sum()), 4),
            }
        )
    RECORD.write_text(json.dumps(windows, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    record()
