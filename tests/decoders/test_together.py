"""Every built-in decoder beside every other in one batch, and many searches that fork at once."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

from chatserve.engine import GenerationRequest
from chatserve.testing import Answer, RandomLogits, Record, TrialEngine
from chatserve.testing.scenes import random_model
from tests.decoders.built_in import BUILT_IN, CASES, register_prefix, request

SAMPLINGS: list[dict[str, Any]] = [
    {"seed": 1},
    {"seed": 2, "temperature": 0.7, "top_p": 0.9, "stop": ("e", "th")},
    {"seed": 3, "temperature": 0.0, "max_tokens": 12, "ignore_eos": True},
]
PROMPTS = [b"the cat sat on the mat, the cat ", b"one two three four five, one two ", b"a"]


def engine(**limits: Any) -> TrialEngine:
    made = TrialEngine(BUILT_IN.values(), random_model(3), **limits)
    register_prefix(made)
    return made


@cache
def requests() -> list[GenerationRequest]:
    """Of every decoder one with each of the samplings."""
    made = []
    for place, name in enumerate(sorted(BUILT_IN)):
        params, n = CASES.get(name, ({}, 1))
        for shift, sampling in enumerate(SAMPLINGS):
            prompt = PROMPTS[(place + shift) % len(PROMPTS)]
            made.append(request(name, prompt=prompt, params=params, **{"n": n, "max_tokens": 8, **sampling}))
    return made


@cache
def alone() -> list[list[Answer]]:
    """The answers of each request in an engine of its own."""
    return [engine().run(asked)[0].answers() for asked in requests()]


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({}, id="roomy"),
        pytest.param({"max_batch_tokens": 7}, id="fewer tokens a step than one await has rows"),
        pytest.param({"num_blocks": 32}, id="a pool for few"),
        pytest.param({"num_blocks": 32, "prefix_caching": False}, id="a pool for few, nothing found again"),
    ],
)
def test_all_decoders_in_one_batch_answer_as_they_do_alone(limits: dict[str, Any]) -> None:
    assert {asked.decoder for asked in requests()} == set(BUILT_IN)
    together = engine(**limits)
    order = random.Random(5).sample(range(len(requests())), len(requests()))
    records: dict[int, Record] = {}
    for place in order:
        records[place] = together.start(requests()[place])
        if place % 3 == 0:
            together.step()
    while together.step():
        pass
    together.check_empty()
    differing = [
        (asked.decoder, records[place].answers(), alone()[place])
        for place, asked in enumerate(requests())
        if records[place].answers() != alone()[place]
    ]
    assert differing == []
    if "num_blocks" in limits:
        assert together.stats()["preemptions"] > 0


NUM_SEARCHES, WIDTH = 8, 8


@pytest.mark.parametrize("num_steps", [40, pytest.param(200, marks=pytest.mark.full)])
@pytest.mark.parametrize("is_cancelled", [False, True], ids=["to the end", "cancelled at random steps"])
@pytest.mark.parametrize("num_blocks", [4000, 250], ids=["roomy", "a pool for few"])
def test_many_wide_searches_keep_the_books_in_order(num_steps: int, is_cancelled: bool, num_blocks: int) -> None:
    """8 requests of beam search, width 8; the engine compares its books with all tables after every step."""
    together = TrialEngine([BUILT_IN["beam"]], RandomLogits(260, 7, scale=8.0), num_blocks=num_blocks)
    generator = random.Random(num_steps)
    records, last_steps = [], []
    for number in range(NUM_SEARCHES):
        asked = request(
            "beam",
            prompt=b"abcdefghijk" * (number + 1),
            params={"width": WIDTH},
            max_tokens=num_steps,
            ignore_eos=True,
            seed=number,
        )
        records.append(together.start(asked))
        last_steps.append(generator.randrange(num_steps) if is_cancelled else None)
    num_run = 0
    while together.step():
        num_run += 1
        for record, last in zip(records, last_steps, strict=True):
            if last is not None and num_run > last and not record.request.is_finished:
                together.abort(record.request)
                together.check_integrity()
                assert not record.request.group.live
    together.check_empty()
    if is_cancelled:
        assert all(record.request.is_finished and not record.has_ended for record in records)
    else:
        assert num_run >= num_steps
        assert [len(record.answers()[0].token_ids) for record in records] == [num_steps] * NUM_SEARCHES
