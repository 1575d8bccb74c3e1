"""What the engine shows of itself, against the pool's own counts and scripted situations."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from chatserve.decoding import Registry, Sampling
from chatserve.engine import AsyncEngine, Engine, EngineLimits, Generation, GenerationRequest
from chatserve.engine.view import CACHED, FREE, PINNED, SHARED, USED, EngineView, Snapshot, progress
from chatserve.testing import VOCAB_SIZE, FakeRunner, RandomLogits, byte_vocabulary


def make_engine(num_blocks: int = 64, max_batch_tokens: int = 512) -> tuple[Engine, AsyncEngine]:
    """An engine that is stepped by hand, and its asyncio face."""
    limits = EngineLimits(num_blocks, block_size=4, max_batch_tokens=max_batch_tokens)
    engine = Engine(FakeRunner(RandomLogits(VOCAB_SIZE)), byte_vocabulary(), Registry.load(), limits)
    return engine, AsyncEngine(engine)


def submit(
    engine: Engine, asynchronous: AsyncEngine, name: str, prompt: bytes, decoder: str | None = None, n: int = 1
) -> Generation:
    sampling = Sampling(max_tokens=20, ignore_eos=True, n=n, seed=1)
    given = GenerationRequest(prompt_token_ids=tuple(prompt), sampling=sampling, request_id=name, decoder=decoder)
    generation = Generation(asynchronous, n)
    generation._request = engine.submit(given, generation._listen)
    return generation


def check_against_pool(engine: Engine, snapshot: Snapshot) -> None:
    pool = engine.pool
    engine.check_integrity()
    held = snapshot.num_used + snapshot.num_shared
    assert held == pool.num_used
    assert snapshot.num_cached == pool.num_cached == np.count_nonzero(snapshot.codes == CACHED)
    assert np.count_nonzero(snapshot.codes == FREE) == pool.num_free - pool.num_cached
    owners = snapshot.owners[snapshot.codes != PINNED]
    assert ((owners >= 0) == np.isin(snapshot.codes[snapshot.codes != PINNED], (USED, SHARED))).all()
    for index, request in enumerate(snapshot.requests):
        assert np.count_nonzero(snapshot.owners == index) <= request.num_blocks


def ended_steps(engine: Engine, view: EngineView) -> Iterator[Snapshot]:
    """A snapshot after each step, checked, until the engine has nothing to do."""
    while engine.step():
        snapshot = view.snapshot()
        check_against_pool(engine, snapshot)
        yield snapshot


def test_an_idle_engine() -> None:
    engine, asynchronous = make_engine()
    snapshot = EngineView(asynchronous).snapshot()
    assert snapshot.requests == []
    assert set(snapshot.codes.tolist()) == {FREE}
    assert set(snapshot.owners.tolist()) == {-1}
    check_against_pool(engine, snapshot)


def test_one_request_from_prefill_to_the_end() -> None:
    engine, asynchronous = make_engine(max_batch_tokens=8)
    generation = submit(engine, asynchronous, "a", bytes(20))
    view = EngineView(asynchronous)
    before = progress(asynchronous, generation)
    assert (before.state, before.position) == ("waiting", 1)
    engine.step()
    first = progress(asynchronous, generation)
    assert (first.state, first.position, first.num_prefilled) == ("prefill", 0, 8)
    [seen] = view.snapshot().requests
    assert (seen.id, seen.decoder, seen.state) == ("a", "sampling", "prefill")
    assert (seen.num_sequences, seen.num_blocks, seen.num_tokens) == (1, 2, 20)
    engine.step()
    assert progress(asynchronous, generation).num_prefilled == 16
    engine.step()
    assert progress(asynchronous, generation).state == "running"
    lengths = [snapshot.requests[0].num_tokens for snapshot in ended_steps(engine, view) if snapshot.requests]
    assert lengths == list(range(22, 40))
    last = view.snapshot()
    assert last.requests == []
    assert last.num_cached == 9  # full blocks of the 39 tokens that were run


def test_forks_share_blocks() -> None:
    engine, asynchronous = make_engine()
    submit(engine, asynchronous, "p", bytes(16), n=3)
    view = EngineView(asynchronous)
    snapshots = list(ended_steps(engine, view))
    middle = snapshots[3]
    [request] = middle.requests
    assert (request.decoder, request.num_sequences) == ("parallel", 3)
    assert middle.num_shared == 4  # the prompt
    assert request.num_blocks == middle.num_shared + middle.num_used


def test_an_index_lasts_while_the_request_lives() -> None:
    engine, asynchronous = make_engine()
    generations = {name: submit(engine, asynchronous, name, name.encode() * 9) for name in "abcd"}
    view = EngineView(asynchronous)
    engine.step()
    assert [request.id for request in view.snapshot().requests] == ["a", "b", "c", "d"]
    engine.abort(generations["b"].request)
    submit(engine, asynchronous, "e", b"e" * 9)
    engine.step()
    snapshot = view.snapshot()
    assert [request.id for request in snapshot.requests] == ["a", "d", "c", "e"]
    check_against_pool(engine, snapshot)
    engine.abort(generations["a"].request)
    engine.abort(generations["d"].request)
    assert sorted(request.id for request in view.snapshot().requests) == ["c", "e"]


def test_preempted_requests_are_told_from_new_ones() -> None:
    engine, asynchronous = make_engine(num_blocks=13)
    for name in "abc":
        submit(engine, asynchronous, name, name.encode() * 9)
    view = EngineView(asynchronous)
    states = {request.state for snapshot in ended_steps(engine, view) for request in snapshot.requests}
    assert engine.stats()["preemptions"] > 0
    assert {"running", "preempted"} <= states


def test_prefixes_are_pinned() -> None:
    engine, asynchronous = make_engine()
    engine.register_prefix("shots", tuple(bytes(10)), lambda news: None)
    while engine.step():
        pass
    snapshot = EngineView(asynchronous).snapshot()
    assert np.count_nonzero(snapshot.codes == PINNED) == 3
    assert snapshot.num_used == 3
    check_against_pool(engine, snapshot)


def test_rates_count_every_token_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    engine, asynchronous = make_engine()
    view = EngineView(asynchronous)
    assert view.snapshot().tokens_per_s == 0
    for name in "abc":
        submit(engine, asynchronous, name, name.encode() * 9)
    while engine.step():
        pass
    clock[0] += 1.5
    snapshot = view.snapshot()
    assert (snapshot.tokens_per_s, snapshot.requests_per_s) == (60 / 1.5, 3 / 1.5)
    clock[0] += 1.5
    view.snapshot()
    clock[0] += 1.5
    assert view.snapshot().tokens_per_s == 0


def test_a_look_at_many_blocks_is_quick() -> None:
    """Against a scale of this machine: a pass over the same number of blocks in plain Python."""
    engine, asynchronous = make_engine(num_blocks=10_000, max_batch_tokens=65536)
    for index in range(32):
        submit(engine, asynchronous, str(index), bytes([index]) * 900)
    for _ in range(3):
        engine.step()
    view = EngineView(asynchronous)
    assert view.snapshot().num_used > 5_000

    def seconds(work: object) -> float:
        started = time.perf_counter()
        work()  # type: ignore[operator]
        return time.perf_counter() - started

    looks = min(seconds(view.snapshot) for _ in range(20))
    passes = min(seconds(lambda: [block + 1 for block in range(10_000)]) for _ in range(20))
    print(f"a look at 10,000 blocks: {looks * 1e3:.2f} ms; a list of 10,000 numbers: {passes * 1e3:.2f} ms")
    assert looks < 4 * passes
