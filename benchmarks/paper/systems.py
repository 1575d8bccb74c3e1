"""Systems that serve a trace: ours, the paper's baselines, and the two combinations that lie between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from benchmarks.paper import reservation
from benchmarks.paper.contiguous import ContiguousServer
from benchmarks.paper.cost import CostModel
from benchmarks.paper.outcome import Outcome
from benchmarks.paper.paged import PagedServer
from benchmarks.paper.reservation import Reservation
from benchmarks.paper.served_model import OPT_13B, ServedModel
from benchmarks.paper.traces import Job
from benchmarks.paper.workloads import ALPACA, beam
from chatserve.config import Preemption

OURS = "chatserve"
ORACLE, POW2, MAX = "Orca (Oracle)", "Orca (Pow2)", "Orca (Max)"
FASTER_TRANSFORMER = "FasterTransformer"
PAGED_BATCHES = "paged, request-level"

RESERVATIONS: dict[str, Reservation] = {
    ORACLE: reservation.oracle,
    POW2: reservation.power_of_two,
    MAX: reservation.maximum,
    FASTER_TRANSFORMER: reservation.maximum,
}


@dataclass(frozen=True, slots=True)
class System:
    """One system under test.

    Attributes:
        name: one of the constants above.
        block_size: of paged ones.
        preemption: how paged ones bring a preempted request back.
    """

    name: str = OURS
    block_size: int = 16
    preemption: Preemption = "recompute"

    @property
    def is_paged(self) -> bool:
        return self.name not in RESERVATIONS

    def serve(self, model: ServedModel, jobs: list[Job]) -> Outcome:
        """Run a trace on this model's server."""
        if self.is_paged:
            cost = CostModel(model, self.block_size)
            by_batch = self.name == PAGED_BATCHES
            return PagedServer(cost, by_batch=by_batch, preemption=self.preemption).serve(jobs)
        moved = moved_share(jobs[0].width) if jobs[0].decoder == "beam" else 0.0
        by_batch = self.name == FASTER_TRANSFORMER
        return ContiguousServer(CostModel(model), RESERVATIONS[self.name], by_batch=by_batch, moved=moved).serve(jobs)


@cache
def moved_share(width: int) -> float:
    """Share of a beam search's hypotheses that continue another one than that whose place they take.

    Measured on the real decoder: with large blocks nearly every such hypothesis needs a copy of its last block. Where
    KV is contiguous all of it has to be copied.
    """
    jobs = replace(beam(ALPACA, width), num_requests=12).jobs(rate=4.0, seed=0)
    counters = PagedServer(CostModel(OPT_13B, block_size=256), num_slots=1 << 17).serve(jobs).counters
    return counters["copies"] / counters["attended_rows"]
