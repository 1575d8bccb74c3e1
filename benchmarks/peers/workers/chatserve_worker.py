"""Worker: this project's engine, as the server runs it."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.workers.loop import Run, serve
from chatserve.engine import LLM


def prepare() -> Run:
    llm = LLM(kv_memory=1.0)

    def run(order: dict[str, Any], prompts: list[list[int]], num_tokens: int) -> None:
        params: dict[str, Any] = {"max_tokens": num_tokens, "ignore_eos": True, "temperature": 0}
        if order["kind"] == "beam":
            params |= {"decoder": "beam", "width": order["width"]}
        elif order["kind"] == "parallel":
            params |= {"decoder": "parallel", "n": order["width"], "temperature": 1, "seed": 1}
        answers = llm.generate(prompts, **params)
        assert all(len(output.token_ids) == num_tokens for answer in answers for output in answer.outputs)

    return run


if __name__ == "__main__":
    serve(prepare)
