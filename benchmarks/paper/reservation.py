"""Reservations: how many slots each of the paper's Orca variants sets aside for a request at its admission."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from benchmarks.paper.traces import LONGEST, Job

Reservation: TypeAlias = Callable[[Job], int]  # slots for one sequence of the job


def maximum(job: Job) -> int:
    """Orca (Max): the longest sequence the model allows."""
    return LONGEST


def power_of_two(job: Job) -> int:
    """Orca (Pow2): the prompt, and the answer rounded up to a power of two."""
    return min(LONGEST, job.prompt_len + (1 << (job.output_len - 1).bit_length()))


def oracle(job: Job) -> int:
    """Orca (Oracle): the prompt and the answer, which only an oracle knows in advance."""
    return job.prompt_len + job.output_len
