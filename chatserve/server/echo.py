"""`Echo`: the prompt as a legacy completion sends it back before the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chatserve.engine.async_engine import Generation
from chatserve.server.logprobs import LegacyLogprobs


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of the request, as text (given, or decoded from the ids given) and as ids."""

    text: str
    token_ids: tuple[int, ...]


class Echo:
    """Finds the prompt of a cumulative choice index; every prompt has the same number of choices."""

    def __init__(self, prompts: Sequence[Prompt], generations: Sequence[Generation]) -> None:
        self._prompts = prompts
        self._generations = generations
        self._choices_each = generations[0].num_choices

    def text(self, choice: int) -> str:
        """The prompt's text."""
        return self._prompts[choice // self._choices_each].text

    def logprobs(self, choice: int, builder: LegacyLogprobs) -> dict[str, list[Any]]:
        """The prompt's log-probabilities; may be asked once the choice has produced something."""
        number = choice // self._choices_each
        return builder.prompt(self._generations[number].prompt_logprobs or [])
