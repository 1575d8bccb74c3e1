"""`Workload`: what every engine is given, and how its time becomes a rate."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that are given at once.

    Attributes:
        title: as the tables say it.
        kind: ``decode`` and ``prefill`` greedy answers, of which the decoding or the reading of the prompts is
            timed; ``few-shot`` greedy answers behind a shared prefix; ``beam`` and ``parallel`` answers of `width`
            hypotheses or choices a request; ``http`` greedy answers as streams.
        num_requests, prompt_len, answer_len: counts of requests and of tokens.
        shared_len: tokens at the beginning of all prompts that are the same.
        width: beams or choices.
    """

    title: str
    kind: str
    num_requests: int
    prompt_len: int
    answer_len: int
    shared_len: int = 0
    width: int = 1

    @property
    def num_tokens(self) -> int:
        """Tokens that the rate counts: those of the prompts in a prefill, else those of all answers asked for.

        Decoding counts from the second token on: the first one comes out of the prefill.
        """
        if self.kind == "prefill":
            return self.num_requests * self.prompt_len
        if self.kind == "decode":
            return self.num_requests * (self.answer_len - 1)
        return self.num_requests * self.answer_len * (self.width if self.kind == "parallel" else 1)

    def prompts(self, turn: int) -> list[list[int]]:
        """Token ids of the prompts, of no end token; own parts differ from turn to turn, so that no cache helps."""
        shared = [1000 + 7 * i for i in range(self.shared_len)]
        own_len = self.prompt_len - self.shared_len
        return [
            shared + [1000 + (7919 * turn + 37 * request + 11 * i) % 30000 for i in range(own_len)]
            for request in range(self.num_requests)
        ]

    def order(self, turn: int) -> dict[str, Any]:
        """What a worker process is told: the fields of this workload, and the prompts."""
        return asdict(self) | {"prompts": self.prompts(turn)}


def standard_workloads() -> list[Workload]:
    decodes = [Workload(f"decode, batch {size}", "decode", size, 128, 33) for size in (1, 8, 32)]
    return [
        *decodes,
        Workload("prefill 512", "prefill", 1, 512, 1),
        Workload("few-shot prefix", "few-shot", 32, 373, 32, shared_len=341),
        Workload("32 requests, prompts included", "few-shot", 32, 128, 64),  # what 32 streams over HTTP do
        Workload("beam 4, 8 requests", "beam", 8, 64, 32, width=4),
        Workload("parallel 8", "parallel", 1, 128, 32, width=8),
    ]


def short_workloads() -> list[Workload]:
    """The same kinds in seconds, to see that everything runs."""
    return [
        Workload("decode, batch 2", "decode", 2, 16, 5),
        Workload("prefill 64", "prefill", 1, 64, 1),
        Workload("few-shot prefix", "few-shot", 2, 48, 4, shared_len=32),
        Workload("beam 2, 2 requests", "beam", 2, 16, 4, width=2),
        Workload("parallel 2", "parallel", 1, 16, 4, width=2),
    ]
