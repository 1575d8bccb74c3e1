"""Worker: vLLM on the CPU, in float32 on the weights of the same file (see `engines.install`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmarks.peers.workers.loop import Run, serve


def prepare() -> Run:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")  # by default one core is kept for the front end
    from vllm import LLM, SamplingParams

    folder = Path(os.environ["CHATSERVE_CACHE_FOLDER"]) / "peers" / "model"
    llm = LLM(model=str(folder), dtype="float32", max_model_len=1024, skip_tokenizer_init=True)

    def run(order: dict[str, Any], prompts: list[list[int]], num_tokens: int) -> None:
        is_parallel = order["kind"] == "parallel"
        settings = SamplingParams(
            temperature=1.0 if is_parallel else 0.0, n=order["width"], max_tokens=num_tokens, ignore_eos=True,
            detokenize=False,
        )  # fmt: skip
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        answers = llm.generate(given, settings, use_tqdm=False)
        assert all(len(output.token_ids) == num_tokens for answer in answers for output in answer.outputs)

    return run


if __name__ == "__main__":
    serve(prepare)
