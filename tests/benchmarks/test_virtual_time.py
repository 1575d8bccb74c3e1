"""Servers in virtual time: the real engine against the model of the baselines, and both against plain arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.paper import reservation
from benchmarks.paper.contiguous import ContiguousServer
from benchmarks.paper.conversations import Conversations
from benchmarks.paper.cost import CostModel
from benchmarks.paper.outcome import Outcome
from benchmarks.paper.paged import PagedServer
from benchmarks.paper.served_model import OPT_13B
from benchmarks.paper.systems import System, moved_share
from benchmarks.paper.traces import Job
from benchmarks.paper.workloads import ALPACA, MIXED, SHAREGPT, Workload, beam, parallel, translation
from chatserve.config import Preemption

VAST = replace(OPT_13B, kv_memory=OPT_13B.kv_memory * 64)
STEP = 26e9 / 1.3e12  # seconds of a step that only reads the weights


def _few(workload: Workload, count: int, rate: float = 5.0) -> list[Job]:
    return replace(workload, num_requests=count).jobs(rate, seed=0)


def _times(outcome: Outcome) -> list[tuple[float, float]]:
    return [(served.first_token_at, served.finished_at) for served in outcome.served]


@pytest.mark.parametrize(("workload", "tolerance"), [(ALPACA, 1e-9), (parallel(ALPACA, 3), 2 * STEP)])
def test_the_model_of_orca_and_the_engine_agree_where_memory_is_no_limit(workload: Workload, tolerance: float) -> None:
    """Same cost model, same trace, no memory pressure: every request must get its first and last token at the same
    time, although one steps the real engine token by token and the other computes stretches at once. Samples that part
    make the engine copy their last block, which the model of Orca leaves out; that can move an admission by a step."""
    cost, jobs = CostModel(VAST), _few(workload, 40)
    engine = PagedServer(cost, block_size=16).serve(jobs)
    model = ContiguousServer(cost, reservation.maximum).serve(jobs)
    for ours, theirs in zip(_times(engine), _times(model), strict=True):
        assert ours == pytest.approx(theirs, abs=tolerance)
    assert engine.batched == pytest.approx(model.batched, rel=0.02)


def test_one_request_alone_takes_a_step_a_token() -> None:
    outcome = ContiguousServer(CostModel(OPT_13B), reservation.oracle).serve([Job(3.0, 100, 11)])
    attended = sum(range(101, 111))
    flops = 26e9 * 110 + 4 * 40 * 5120 * 5050
    assert outcome.served[0].finished_at == pytest.approx(
        3.0 + 11 * STEP + attended * 819_200 / 1.3e12 + flops / 156e12
    )


def test_orca_admits_in_order_and_never_more_than_memory() -> None:
    """Eight requests of 2048 slots where seven fit: the eighth starts when the first is done, though it is short."""
    jobs = [Job(0.0, 10, 100 + index) for index in range(7)] + [Job(1e-3, 10, 5)]
    outcome = ContiguousServer(CostModel(OPT_13B), reservation.maximum).serve(jobs)
    first, last = outcome.served[0], outcome.served[7]
    assert last.first_token_at > first.finished_at
    assert last.first_token_at < outcome.served[2].finished_at


def test_a_batch_ends_together_and_others_wait_for_it() -> None:
    jobs = [Job(0.0, 10, 5), Job(0.0, 10, 50), Job(0.5 * STEP, 10, 5)]
    outcome = ContiguousServer(CostModel(OPT_13B), reservation.maximum, by_batch=True).serve(jobs)
    short, long, late = outcome.served
    assert short.finished_at == long.finished_at
    assert late.first_token_at > long.finished_at


@pytest.mark.parametrize("by_batch", [False, True])
def test_uses_of_contiguous_memory_add_up_to_it(by_batch: bool) -> None:
    server = ContiguousServer(CostModel(OPT_13B), reservation.power_of_two, by_batch=by_batch)
    outcome = server.serve(_few(SHAREGPT, 60, rate=20.0))
    memory = outcome.memory
    uses = (memory.tokens, memory.reserved, memory.internal, memory.external)
    assert min(uses) >= 0
    assert sum(memory.shares().values()) == pytest.approx(1.0)
    assert server.allocator.num_free == OPT_13B.num_slots
    server.allocator.check_integrity()


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_the_engine_under_pressure_finishes_everything_and_fills_memory(preemption: Preemption) -> None:
    server = PagedServer(CostModel(OPT_13B, 16), num_slots=3200, preemption=preemption)
    outcome = server.serve(_few(SHAREGPT, 40, rate=50.0))
    assert (outcome.counters["swapped_blocks"] > 0) == (preemption == "swap")
    assert len(outcome.served) == 40
    assert outcome.counters["preemptions"] > 0
    assert outcome.memory.shares()["tokens"] > 0.85
    assert server.engine.pool.num_used == 0
    server.engine.check_integrity()


def test_request_level_scheduling_over_pages_ends_batches_together() -> None:
    server = PagedServer(CostModel(OPT_13B, 16), by_batch=True)
    outcome = server.serve([Job(0.0, 10, 5), Job(0.0, 10, 50), Job(0.5 * STEP, 10, 5)])
    short, long, late = outcome.served
    assert short.finished_at == long.finished_at
    assert late.first_token_at > long.finished_at


def test_runs_are_repeatable() -> None:
    jobs = _few(MIXED, 12)
    one, two = (PagedServer(CostModel(OPT_13B, 16)).serve(jobs) for _ in range(2))
    assert _times(one) == _times(two)
    assert one.counters == two.counters


def test_beams_share_more_than_samples_and_their_forks_move() -> None:
    shared = {
        kind.__name__: PagedServer(CostModel(VAST, 16)).serve(_few(kind(ALPACA, 4), 8)).shared
        for kind in (parallel, beam)
    }
    assert 0 < shared["parallel"] < shared["beam"] < 0.75
    assert 0 < moved_share(4) < 0.75


def test_a_shared_prefix_is_computed_once() -> None:
    jobs = _few(translation(341), 10)
    outcome = PagedServer(CostModel(VAST, 16)).serve(jobs)
    own = sum(job.prompt_len - 341 + job.output_len for job in jobs)
    assert outcome.counters["computed_tokens"] <= own + 10


def test_kv_of_earlier_rounds_is_found_again() -> None:
    computed = {}
    for is_kept in (False, True):
        conversations = Conversations(rate=1.0, count=8, seed=4)
        server = PagedServer(CostModel(VAST, 16), prefix_caching=is_kept)
        outcome = server.serve(conversations.jobs, conversations.follow_up)
        assert len(outcome.served) > 8, "there are later rounds"
        computed[is_kept] = outcome.counters["computed_tokens"]
    assert computed[True] < 0.8 * computed[False]


def test_systems_differ_as_the_paper_says() -> None:
    """At a rate that overloads all: the order of Figure 13a."""
    jobs = _few(SHAREGPT, 80, rate=4.0)
    names = ("chatserve", "Orca (Oracle)", "Orca (Pow2)", "Orca (Max)", "FasterTransformer")
    throughputs = [System(name).serve(OPT_13B, jobs).throughput for name in names]
    assert throughputs == sorted(throughputs, reverse=True)
