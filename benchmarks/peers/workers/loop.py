"""`serve`: the loop of a worker, with nothing but the standard library: orders in, seconds out."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Run = Callable[[dict[str, Any], list[list[int]], int], None]
"""Runs an order on prompts, to so many new tokens each."""


def serve(prepare: Callable[[], Run]) -> None:
    """Answer orders until the input ends; whatever the engine prints goes to the error output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run: Run | None = None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if run is None:
                run = prepare()
                run(order, _warm_up_prompts(order), order["answer_len"])
            answer: dict[str, Any] = {"seconds": _measure(run, order)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _measure(run: Run, order: dict[str, Any]) -> float:
    """Seconds of the whole order; of decoding, less the time to the first tokens, measured on other prompts."""
    first = 0.0
    if order["kind"] == "decode":
        first = _timed(run, order, _other(order["prompts"], 1), 1)
    return _timed(run, order, order["prompts"], order["answer_len"]) - first


def _timed(run: Run, order: dict[str, Any], prompts: list[list[int]], num_tokens: int) -> float:
    started = time.perf_counter()
    run(order, prompts, num_tokens)
    return time.perf_counter() - started


def _warm_up_prompts(order: dict[str, Any]) -> list[list[int]]:
    return _other(order["prompts"], 2)


def _other(prompts: list[list[int]], distance: int) -> list[list[int]]:
    """Prompts of the same lengths that share no beginning with the given ones."""
    return [[1000 + (token + 15013 * distance) % 30000 for token in prompt] for prompt in prompts]
