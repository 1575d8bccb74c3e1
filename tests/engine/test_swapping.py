"""Preempted groups in host memory: no token changes, nothing leaks, whatever happens while they are away."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatserve.decoding import Registry, Sampling
from chatserve.engine import Engine, EngineLimits, GenerationRequest
from chatserve.errors import UnavailableError
from chatserve.testing import END_TOKEN_ID, VOCAB_SIZE, FakeRunner, RandomLogits, byte_vocabulary
from tests.engine.engines import CheckedEngine, MakeEngine, answers, complete, request

PREFIX = tuple(range(65, 65 + 21))
WAYS: list[tuple[str, dict[str, Any], int]] = [
    ("greedy", {}, 1),
    ("sampling", {}, 1),
    ("parallel", {}, 4),
    ("beam", {"width": 4}, 2),
    ("diverse-beam", {"width": 4, "groups": 2}, 2),
    ("best-of", {"best_of": 4}, 2),
    ("majority", {"votes": 4}, 1),
    ("speculative", {}, 1),
    ("guidance", {"negative": "no"}, 1),
    ("shared-prefix", {"prefix": "shared"}, 2),
]


def one_of(way: tuple[str, dict[str, Any], int], seed: int) -> GenerationRequest:
    """A request of this decoder that is too large for its share of a small pool."""
    name, params, n = way
    prompt = [40 + (seed + index // 3) % 50 for index in range(14)]
    sampling = Sampling(seed=seed, n=n, max_tokens=22, ignore_eos=seed % 2 == 0, temperature=0.8 * (name != "greedy"))
    return GenerationRequest(prompt_token_ids=tuple(prompt), sampling=sampling, decoder=name, decoder_params=params)


def with_prefix(engine: Engine) -> Engine:
    engine.register_prefix("shared", PREFIX, lambda news: None)
    while engine.step():
        pass
    return engine


def make(**limits: Any) -> Engine:
    model = RandomLogits(VOCAB_SIZE, seed=3, end_token_ids=(END_TOKEN_ID,), end_bias=2.0)
    return CheckedEngine(FakeRunner(model), byte_vocabulary(), _REGISTRY, EngineLimits(block_size=4, **limits))


_REGISTRY = Registry.load()


def drain(engine: Engine) -> None:
    while engine.step():
        pass


def swapped(engine: Engine) -> float:
    return engine.stats()["blocks_swapped"]


def test_every_decoder_of_the_registry_is_tried() -> None:
    assert {name for name, _, _ in WAYS} == {info.name for info in _REGISTRY.list()}


def run(engine: Engine, requests: list[GenerationRequest]) -> tuple[list[dict[int, tuple[str, str | None]]], int]:
    """The answers to requests that arrive together, and the most blocks they held at once."""
    heard: list[list[Any]] = [[] for _ in requests]
    for one, news in zip(requests, heard, strict=True):
        engine.submit(one, news.append)
    peak = 0
    while engine.step():
        peak = max(peak, int(engine.stats()["blocks_used"]))
    return [joined(news) for news in heard], peak


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way[0])
def test_a_pool_four_times_too_small_changes_no_answer(way: tuple[str, dict[str, Any], int]) -> None:
    requests = [one_of(way, seed) for seed in range(8)]
    expected, peak = run(with_prefix(make(num_blocks=1000)), requests)
    alone = max(run(with_prefix(make(num_blocks=1000)), [one])[1] for one in requests)
    for preemption in ("swap", "recompute", "auto"):
        num_blocks = max(peak // 4, alone * 3 // 2)
        engine = with_prefix(make(num_blocks=num_blocks, num_host_blocks=1000, preemption=preemption))
        assert run(engine, requests)[0] == expected
        stats = engine.stats()
        assert stats["preemptions"] > 0
        if preemption != "auto":  # a group that has computed nothing yet has nothing to swap
            assert (stats["preemptions_by_swap"] > 0) == (preemption == "swap")
        assert (stats["blocks_used"], stats["blocks_swapped"]) == (stats["blocks_pinned"], 0)


def joined(news: list[Any]) -> dict[int, tuple[str, str | None]]:
    """Text and finish reason of each choice."""
    texts: dict[int, tuple[str, str | None]] = {}
    assert news[-1] is None
    for delta in news[:-1]:
        text, reason = texts.get(delta.choice, ("", None))
        texts[delta.choice] = (text + delta.text, reason or delta.finish_reason)
    return texts


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_arrivals_departures_and_a_full_host_pool_change_no_answer(data: st.DataObject) -> None:
    """Mixed decoders that arrive at drawn steps; some clients leave at drawn steps, also while they are away."""
    count = data.draw(st.integers(3, 8))
    requests = [one_of(data.draw(st.sampled_from(WAYS)), seed) for seed in range(count)]
    engine = with_prefix(
        make(
            num_blocks=data.draw(st.integers(44, 70)),
            num_host_blocks=data.draw(st.sampled_from([1, 10, 30, 70])),
            preemption=data.draw(st.sampled_from(["swap", "swap", "auto"])),
            policy=data.draw(st.sampled_from(["fcfs", "priority", "shortest-remaining"])),
            max_batch_tokens=data.draw(st.sampled_from([3, 16, 512])),
        )
    )
    choices = random.Random(data.draw(st.integers(0, 1000)))
    heard: list[list[Any]] = [[] for _ in requests]
    submitted, left = [], set()
    for one, news in zip(requests, heard, strict=True):
        submitted.append(engine.submit(one, news.append))
        for _ in range(choices.randrange(6)):
            engine.step()
    while engine.has_work:
        engine.step()
        if choices.random() < 0.05:
            gone = choices.randrange(count)
            if not submitted[gone].is_finished:
                left.add(gone)
                engine.abort(submitted[gone])
                engine.check_integrity()
    for index, (one, news) in enumerate(zip(requests, heard, strict=True)):
        if index not in left:
            assert joined(news) == solo(one)
    assert engine.stats()["blocks_used"] == engine.stats()["blocks_pinned"]
    assert swapped(engine) == 0


_SOLO: dict[bytes, dict[int, tuple[str, str | None]]] = {}


def solo(one: GenerationRequest) -> dict[int, tuple[str, str | None]]:
    key = repr(one).encode()
    if key not in _SOLO:
        engine, news = with_prefix(make(num_blocks=1000)), []  # type: ignore[var-annotated]
        engine.submit(one, news.append)
        drain(engine)
        _SOLO[key] = joined(news)
    return _SOLO[key]


def test_a_swapped_group_computes_nothing_twice(make_engine: MakeEngine) -> None:
    both = [request(range(start, start + 40), temperature=0, max_tokens=60, ignore_eos=True) for start in (0, 50)]
    expected = [complete(make_engine(num_blocks=8, block_size=16), one)[0] for one in both]
    runner = FakeRunner(RandomLogits(VOCAB_SIZE, seed=3, end_token_ids=(END_TOKEN_ID,), end_bias=2.0))
    engine = make_engine(runner, num_blocks=8, block_size=16, num_host_blocks=8, preemption="swap")
    assert answers(complete(engine, *both)) == answers(expected)
    assert engine.stats()["preemptions"] == engine.stats()["preemptions_by_swap"] > 0
    assert runner.num_tokens <= 2 * (40 + 60)


@pytest.mark.parametrize(("num_host_blocks", "preemption"), [(0, "swap"), (2, "swap"), (8, "recompute")])
def test_without_room_on_the_host_groups_are_recomputed(
    make_engine: MakeEngine, num_host_blocks: int, preemption: str
) -> None:
    both = [request(range(start, start + 40), temperature=0, max_tokens=60, ignore_eos=True) for start in (0, 50)]
    engine = make_engine(num_blocks=8, block_size=16, num_host_blocks=num_host_blocks, preemption=preemption)
    complete(engine, *both)
    assert engine.stats()["preemptions"] > 0
    assert engine.stats()["preemptions_by_swap"] == 0


def test_the_host_pool_is_never_larger_than_the_device_pool(make_engine: MakeEngine) -> None:
    assert make_engine(num_blocks=10, num_host_blocks=1000).scheduler.swapping.space.num_blocks == 10


@pytest.mark.parametrize("end", ["abort", "fail"])
def test_a_request_that_ends_while_it_is_away_leaves_nothing(make_engine: MakeEngine, end: str) -> None:
    engine = make_engine(num_blocks=8, block_size=16, num_host_blocks=8, preemption="swap")
    both = [request(range(start, start + 40), temperature=0, max_tokens=60, ignore_eos=True) for start in (0, 50)]
    heard: list[Any] = []
    first, second = (engine.submit(one, heard.append) for one in both)
    while not swapped(engine):
        engine.step()
    assert not second.is_running
    if end == "abort":
        engine.abort(second)
    else:
        engine.fail(second, UnavailableError("the server is shutting down"))
    assert swapped(engine) == 0
    drain(engine)
    assert first.is_finished
    assert engine.stats()["blocks_used"] == 0


def test_beam_eight_with_a_pool_for_five_beams_ends(make_engine: MakeEngine) -> None:
    beam = GenerationRequest(
        prompt_token_ids=tuple(range(8)),
        sampling=Sampling(max_tokens=40, ignore_eos=True),
        decoder="beam",
        decoder_params={"width": 8},
    )
    engine = make_engine(num_blocks=2 + 5 * 4, num_host_blocks=22, preemption="swap")
    [completion] = complete(engine, beam)
    assert completion.outputs[0].finish_reason == "length"
    assert completion.outputs[0].token_ids


def test_statistics_tell_recomputed_from_swapped(make_engine: MakeEngine) -> None:
    both = [request(range(start, start + 40), temperature=0, max_tokens=60, ignore_eos=True) for start in (0, 50)]
    recomputing = make_engine(num_blocks=8, block_size=16, prefix_caching=False)
    complete(recomputing, *both)
    stats = recomputing.stats()
    runs = 2 * (40 + 60 - 1)
    assert stats["tokens_recomputed"] == recomputing.runner.num_tokens - runs > 0  # type: ignore[attr-defined]
    swapping = make_engine(num_blocks=8, block_size=16, num_host_blocks=8, preemption="swap")
    complete(swapping, *both)
    assert swapping.stats()["tokens_recomputed"] <= 1
    assert swapping.stats()["seconds_swapping"] > 0


def test_unfilled_slots_are_those_of_last_blocks(make_engine: MakeEngine) -> None:
    engine = make_engine(block_size=4)
    engine.submit(request(range(7), temperature=0, max_tokens=8, ignore_eos=True), lambda news: None)
    waste = []
    for _ in range(3):
        engine.step()
        waste.append(engine.stats()["slots_unfilled"])
    assert waste == [1, 0, 3]
