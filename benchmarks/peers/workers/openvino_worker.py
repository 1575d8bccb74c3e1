"""Worker: OpenVINO GenAI on the same GGUF file, by its paged-attention pipeline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmarks.peers.workers.loop import Run, serve


def prepare() -> Run:
    import numpy as np
    import openvino_genai as genai
    from openvino import Tensor

    # The cache folder is found by hand: chatserve is not in this environment.
    folder = Path(os.environ["CHATSERVE_CACHE_FOLDER"])
    pipeline = genai.LLMPipeline(str(next(folder.glob("*.gguf"))), "CPU", ATTENTION_BACKEND="PA")

    def run(order: dict[str, Any], prompts: list[list[int]], num_tokens: int) -> None:
        settings = genai.GenerationConfig()
        settings.max_new_tokens, settings.ignore_eos, settings.do_sample = num_tokens, True, False
        token_ids = np.array(prompts, np.int64)
        given = genai.TokenizedInputs(Tensor(token_ids), Tensor(np.ones_like(token_ids)))
        answers = pipeline.generate(given, settings)
        assert all(len(tokens) == num_tokens for tokens in answers.tokens)

    return run


if __name__ == "__main__":
    serve(prepare)
