"""Traces have the lengths and arrivals that they are said to have."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.paper.conversations import Conversations
from benchmarks.paper.traces import LONGEST, SHORTEST, Lengths, bursty_arrivals, poisson_arrivals
from benchmarks.paper.workloads import ALPACA, CHATBOT, MIXED, SHAREGPT, WORKLOADS, Workload, translation


@pytest.mark.parametrize(("workload", "means"), [(SHAREGPT, (161.3, 338.0)), (ALPACA, (19.3, 58.5))])
def test_lengths_have_the_papers_means(workload: Workload, means: tuple[float, float]) -> None:
    generator = np.random.default_rng(1)
    for lengths, mean in zip((workload.prompt, workload.output), means, strict=True):
        values = lengths.draw(generator, 200_000)
        assert values.mean() == pytest.approx(mean, rel=0.02)
        assert values.std() == pytest.approx(lengths.deviation, rel=0.1)


def test_lengths_are_log_normal_and_clipped() -> None:
    values = Lengths(300.0, 400.0).draw(np.random.default_rng(2), 100_000)
    assert values.min() >= SHORTEST
    assert values.max() == LONGEST
    inside = np.log(values[(values > SHORTEST) & (values < LONGEST)])
    median = 300.0 / math.sqrt(1 + (400 / 300) ** 2)  # of a log-normal: the mean by the root of 1 + variation ** 2
    assert np.exp(np.median(inside)) == pytest.approx(median, rel=0.03)


@pytest.mark.parametrize("variation", [1.0, 4.0])
def test_gaps_between_arrivals(variation: float) -> None:
    generator = np.random.default_rng(3)
    arrivals = poisson_arrivals(generator, 50_000) if variation == 1 else bursty_arrivals(generator, 50_000, variation)
    gaps = np.diff(arrivals)
    assert gaps.mean() == pytest.approx(1.0, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.1)


def test_a_trace_depends_on_its_seed_and_only_its_arrivals_on_the_rate() -> None:
    slow, fast, other = ALPACA.jobs(1.0, 0), ALPACA.jobs(2.0, 0), ALPACA.jobs(1.0, 1)
    assert [job.output_len for job in slow] == [job.output_len for job in fast] != [job.output_len for job in other]
    assert [job.arrival for job in slow] == pytest.approx([2 * job.arrival for job in fast])
    assert slow == ALPACA.jobs(1.0, 0)


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_job_fits_the_model(name: str) -> None:
    workload = WORKLOADS[name]
    jobs = workload.jobs(1.0, 0)
    assert len(jobs) == workload.num_requests
    assert all(job.prompt_len + job.output_len <= LONGEST for job in jobs)
    assert all(job.output_len >= SHORTEST and job.prompt_len > job.prefix_len for job in jobs)
    assert [job.arrival for job in jobs] == sorted(job.arrival for job in jobs)


def test_prefixes_and_kinds_reach_the_jobs() -> None:
    assert {job.prefix_len for job in translation(341).jobs(1.0, 0)} == {341}
    kinds = [(job.decoder, job.width) for job in MIXED.jobs(1.0, 0)[:4]]
    assert kinds == [("greedy", 1), ("sampling", 1), ("parallel", 4), ("beam", 4)]


def test_most_prompts_of_the_chatbot_are_cut_to_1024_tokens() -> None:
    prompts = np.array([job.prompt_len for job in CHATBOT.jobs(1.0, 0)])
    assert prompts.max() == 1024
    assert np.mean(prompts == 1024) > 0.4


def test_each_round_of_a_conversation_begins_with_all_that_was_said() -> None:
    conversations = Conversations(rate=1.0, count=50, seed=4)
    num_later = 0
    for first in conversations.jobs:
        job, now = first, first.arrival
        while (later := conversations.follow_up(job, [7] * job.output_len, now + 5.0)) is not None:
            assert job.prompt is not None
            assert later.prompt is not None
            said = (*job.prompt, *[7] * job.output_len)
            assert later.prompt[: len(said)] == said
            assert len(later.prompt) > len(said)
            assert later.arrival > now + 5.0
            job, now, num_later = later, later.arrival, num_later + 1
    assert num_later > 20
