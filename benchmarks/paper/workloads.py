"""`Workload`: what is asked of a server: lengths, decoder, prefix; and the workloads of the paper's figures.

The paper gives mean lengths only. The answers' deviations follow from its Figure 13: so many batched requests that fill
96.3 % of 15.7K slots hold 497 (ShareGPT) and 114 (Alpaca) tokens on average, which is the mean prompt and half of
E[n^2] / E[n] for answers of n tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper.traces import LONGEST, SHORTEST, Job, Lengths, bursty_arrivals, poisson_arrivals


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of one kind, or of several kinds in turn.

    Attributes:
        name: unique.
        prompt, output: lengths; of a round where there are several.
        kinds: (decoder, width) pairs that jobs take in turn.
        prefix_len: tokens before each prompt that all requests share.
        mean_rounds: above 0, prompts are conversations of so many rounds on average, of which the last
            `prompt.longest` tokens are kept.
        num_requests: in a trace.
    """

    name: str
    prompt: Lengths
    output: Lengths
    kinds: tuple[tuple[str, int], ...] = (("sampling", 1),)
    prefix_len: int = 0
    mean_rounds: float = 0.0
    num_requests: int = 600

    def jobs(self, rate: float, seed: int, *, is_bursty: bool = False) -> list[Job]:
        """A trace at `rate` requests a second; lengths and the pattern of arrivals depend on the seed only."""
        generator = np.random.default_rng(seed)
        count = self.num_requests
        outputs = self.output.draw(generator, count)
        prompts = self._prompt_lens(generator) + self.prefix_len
        outputs = np.maximum(np.minimum(outputs, LONGEST - prompts), SHORTEST)
        prompts = np.minimum(prompts, LONGEST - outputs)
        arrivals = (bursty_arrivals if is_bursty else poisson_arrivals)(generator, count) / rate
        return [
            Job(arrival, prompt_len, output_len, *self.kinds[index % len(self.kinds)], self.prefix_len)
            for index, (arrival, prompt_len, output_len) in enumerate(
                zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
            )
        ]

    def _prompt_lens(self, generator: np.random.Generator) -> NDArray[np.int64]:
        count = self.num_requests
        if not self.mean_rounds:
            return self.prompt.draw(generator, count)
        rounds = generator.geometric(1 / self.mean_rounds, count)
        most = int(rounds.max())
        questions = self.prompt.draw(generator, count * most).reshape(count, most)
        answers = self.output.draw(generator, count * most).reshape(count, most)
        past = np.arange(most) < (rounds - 1)[:, None]
        history = np.where(past, questions + answers, 0).sum(axis=1)
        prompts: NDArray[np.int64] = np.minimum(history + questions[:, 0], self.prompt.longest)
        return prompts


SHAREGPT = Workload("ShareGPT", Lengths(161.3, 200.0), Lengths(338.0, 335.0))
ALPACA = Workload("Alpaca", Lengths(19.3, 15.0), Lengths(58.5, 87.0), num_requests=1200)
SHORT_SHAREGPT = replace(SHAREGPT, name="ShareGPT, 300 requests", num_requests=300)
CHATBOT = Workload("chatbot", Lengths(161.3, 200.0, longest=1024), Lengths(338.0, 335.0, longest=1024), mean_rounds=5.0)
MIXED = replace(
    ALPACA, name="mixed", kinds=(("greedy", 1), ("sampling", 1), ("parallel", 4), ("beam", 4)), num_requests=240
)


def parallel(workload: Workload, width: int) -> Workload:
    """The same with `width` samples for each request; fewer requests, because each costs the simulation more."""
    return _wider(workload, "parallel", width, {"ShareGPT": 60, "Alpaca": 400})


def beam(workload: Workload, width: int) -> Workload:
    """The same with beam search; fewer requests still."""
    return _wider(workload, "beam", width, {"ShareGPT": 30, "Alpaca": 150})


def _wider(workload: Workload, decoder: str, width: int, num_requests: dict[str, int]) -> Workload:
    name = f"{workload.name} {decoder} {width}"
    return replace(workload, name=name, kinds=((decoder, width),), num_requests=num_requests[workload.name])


def translation(prefix_len: int) -> Workload:
    """Translation behind a prefix of examples: short sentences in and out."""
    return Workload(f"translation {prefix_len}", Lengths(32.0, 14.0), Lengths(32.0, 14.0), prefix_len=prefix_len)


WORKLOADS = {
    workload.name: workload
    for workload in (
        SHAREGPT,
        SHORT_SHAREGPT,
        ALPACA,
        CHATBOT,
        MIXED,
        *(kind(data, width) for kind in (parallel, beam) for data in (SHAREGPT, ALPACA) for width in (2, 4, 6)),
        *(translation(prefix_len) for prefix_len in (80, 341)),
    )
}
