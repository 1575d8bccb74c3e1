"""`Conversations`: rounds of question and answer, each prompt holding all that was said before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.paper.instant_runner import VOCAB_SIZE
from benchmarks.paper.traces import LONGEST, Job, poisson_arrivals
from benchmarks.paper.workloads import SHAREGPT

_THINK_SECONDS = 10.0
_MEAN_ROUNDS = 5.0


@dataclass(frozen=True, slots=True)
class _Round:
    """What is decided beforehand, so that it does not depend on how fast a server is."""

    question: tuple[int, ...]
    output_len: int
    think_seconds: float


class Conversations:
    """Users who wait for the answer, think, and ask again, until they are through or the context is full.

    Args:
        rate: conversations that begin in a second.
        count: conversations.
        seed: of everything drawn.
    """

    def __init__(self, rate: float, count: int, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        arrivals = poisson_arrivals(generator, count) / rate
        self.jobs: list[Job] = []
        self._later: dict[Job, list[_Round]] = {}
        for arrival in arrivals.tolist():
            rounds = [_draw(generator) for _ in range(int(generator.geometric(1 / _MEAN_ROUNDS)))]
            self._open((), rounds, arrival, self.jobs)

    def follow_up(self, job: Job, answer: list[int], now: float) -> Job | None:
        """The next round of the conversation that `job` was a round of; None at its end."""
        rounds = self._later.pop(job)
        opened: list[Job] = []
        if rounds:
            assert job.prompt is not None
            self._open((*job.prompt, *answer), rounds, now + rounds[0].think_seconds, opened)
        return opened[0] if opened else None

    def _open(self, history: tuple[int, ...], rounds: list[_Round], arrival: float, jobs: list[Job]) -> None:
        first, *later = rounds
        prompt = (*history, *first.question)
        if len(prompt) + first.output_len <= LONGEST:
            job = Job(arrival, len(prompt), first.output_len, prompt=prompt)
            self._later[job] = later
            jobs.append(job)


def _draw(generator: np.random.Generator) -> _Round:
    question_len, output_len = (int(lengths.draw(generator, 1)[0]) for lengths in (SHAREGPT.prompt, SHAREGPT.output))
    question = tuple(generator.integers(VOCAB_SIZE, size=question_len).tolist())
    return _Round(question, output_len, float(generator.exponential(_THINK_SECONDS)))
