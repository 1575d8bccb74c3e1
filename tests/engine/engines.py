"""Helpers of the engine tests: engines over the fake model, whose paging is checked for real at every forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from chatserve.decoding import Sampling
from chatserve.engine import Completion, Engine, GenerationRequest
from chatserve.engine.llm import run_all

MakeEngine: TypeAlias = Callable[..., Engine]


class CheckedEngine(Engine):
    """Checks its integrity after every step."""

    def step(self) -> bool:
        has_run = super().step()
        self.check_integrity()
        return has_run


def request(prompt: Iterable[int], decoder: str | None = None, **sampling: Any) -> GenerationRequest:
    """A request for a prompt of token ids."""
    return GenerationRequest(prompt_token_ids=tuple(prompt), sampling=Sampling(**sampling), decoder=decoder)


def complete(engine: Engine, *requests: GenerationRequest) -> list[Completion]:
    """Run requests together to their end; the pool must be empty afterwards."""
    completions = run_all(engine, requests)
    assert engine.stats()["blocks_used"] == 0
    assert engine.stats()["sequences"] == 0
    return completions


def answers(completions: Iterable[Completion]) -> list[list[tuple[list[int], str, str | None]]]:
    """What a client sees of completions: tokens, text and finish reason of each choice."""
    return [[(out.token_ids, out.text, out.finish_reason) for out in completion.outputs] for completion in completions]
