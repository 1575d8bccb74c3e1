"""Who runs first and who gives way, under each policy."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from chatserve.engine import Engine, GenerationRequest
from chatserve.errors import DeadlineError, RequestError
from chatserve.testing import VOCAB_SIZE, FakeRunner, RandomLogits
from tests.engine.engines import MakeEngine, request


def finish_order(engine: Engine, requests: list[GenerationRequest]) -> list[int]:
    """Indices of the requests in the order in which they end."""
    order: list[int] = []

    def listener(index: int) -> Any:
        return lambda news: order.append(index) if news is None else None

    for index, one in enumerate(requests):
        engine.submit(one, listener(index))
    while engine.step():
        pass
    return order


def tokens(count: int, seed: int = 0, priority: int = 0) -> GenerationRequest:
    """A request for an answer of just this many tokens."""
    return msgspec.structs.replace(request(range(8), seed=seed, max_tokens=count, ignore_eos=True), priority=priority)


def test_first_come_first_served(make_engine: MakeEngine) -> None:
    engine = make_engine(max_running_sequences=1)
    assert finish_order(engine, [tokens(count) for count in (9, 3, 6, 1)]) == [0, 1, 2, 3]


def test_smaller_priorities_are_admitted_first_then_earlier_arrivals(make_engine: MakeEngine) -> None:
    engine = make_engine(max_running_sequences=1, policy="priority")
    assert finish_order(engine, [tokens(4, priority=level) for level in (5, 0, 5, -1, 0)]) == [3, 1, 4, 0, 2]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_who_gives_way(make_engine: MakeEngine, policy: str) -> None:
    """Three requests outgrow the pool together: the latest gives way, or the one of the lowest priority."""
    engine = make_engine(num_blocks=12, policy=policy)
    levels = (1, 9, 0)
    submitted = [engine.submit(tokens(20, seed, level), lambda news: None) for seed, level in enumerate(levels)]
    while not engine.stats()["preemptions"]:
        engine.step()
    assert [one.num_preemptions for one in submitted] == {"fcfs": [0, 0, 1], "priority": [0, 1, 0]}[policy]
    while engine.step():
        pass
    assert submitted[levels.index(0)].num_preemptions == (1 if policy == "fcfs" else 0)


def test_what_may_become_long_waits_for_what_cannot(make_engine: MakeEngine) -> None:
    engine = make_engine(max_running_sequences=1, policy="shortest-remaining")
    assert finish_order(engine, [tokens(count) for count in (30, 12, 3, 6)])[0] == 2


def test_a_fresh_request_is_expected_to_be_as_long_as_the_finished_ones(make_engine: MakeEngine) -> None:
    engine = make_engine(policy="shortest-remaining")
    rank = engine.scheduler.policy.rank
    fresh = engine.submit(tokens(500), lambda news: None)
    assert rank(fresh)[1] == 500
    engine.step()
    engine.submit(tokens(4), lambda news: None)
    while engine.stats()["requests_finished"] < 1:
        engine.step()
    generated = fresh.prompt.num_generated
    assert generated >= 4
    assert rank(fresh)[1] == 500 - generated  # longer than expected already: all that is allowed may come
    assert rank(engine.submit(tokens(500, 1), lambda news: None))[1] == 4
    engine.abort(fresh)


def test_no_request_is_overtaken_for_ever(make_engine: MakeEngine) -> None:
    """One long request and an endless stream of short ones: it runs once 64 younger ones have arrived."""
    engine = make_engine(max_running_sequences=1, policy="shortest-remaining")
    ended: list[str] = []
    engine.submit(tokens(2), lambda news: None)
    engine.submit(tokens(40), lambda news: ended.append("long") if news is None else None)
    for number in range(200):
        engine.submit(tokens(2, number), lambda news: ended.append("short") if news is None else None)
        for _ in range(2):
            engine.step()
    assert "long" in ended
    assert ended.index("long") <= 64 + 40
    while engine.step():
        pass
    assert len(ended) == 201


def test_a_request_ends_when_its_time_is_up_running_or_waiting(make_engine: MakeEngine) -> None:
    engine = make_engine(
        FakeRunner(RandomLogits(VOCAB_SIZE, seed=3), delay=0.01), num_blocks=2000, max_running_sequences=1
    )
    heard: dict[str, list[Any]] = {"running": [], "waiting": [], "patient": []}
    engine.submit(msgspec.structs.replace(tokens(5000), timeout=2), heard["running"].append)
    engine.submit(msgspec.structs.replace(tokens(5000), timeout=0.1), heard["waiting"].append)
    engine.submit(tokens(3), heard["patient"].append)
    while engine.step():
        pass
    for name, timeout in (("running", "2"), ("waiting", "0.1")):
        assert isinstance(heard[name][-1], DeadlineError)
        assert f"timeout of {timeout} s" in str(heard[name][-1])
    assert len(heard["running"]) > 1
    assert len(heard["waiting"]) == 1
    assert heard["patient"][-1] is None
    assert engine.stats()["blocks_used"] == 0


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_must_be_positive(make_engine: MakeEngine, timeout: float) -> None:
    with pytest.raises(RequestError, match="timeout"):
        make_engine().submit(msgspec.structs.replace(tokens(5), timeout=timeout), lambda news: None)
