"""Registered prefixes: computed once, pinned, shared down to their last partial block."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from chatserve.config import Config
from chatserve.decoding import Sampling
from chatserve.engine import Engine, GenerationRequest
from chatserve.engine.building import build_engine
from chatserve.errors import ConfigError, ContextLengthError, GenerationError, RequestError
from chatserve.testing import VOCAB_SIZE, FakeRunner, RandomLogits
from tests.engine.engines import MakeEngine, answers, request

PREFIX = tuple((5 * i + 2) % 250 for i in range(22))


def register(engine: Engine, name: str, tokens: Sequence[int]) -> None:
    heard: list[object] = []
    engine.register_prefix(name, tuple(tokens), heard.append)
    while engine.step():
        pass
    assert heard[-1] is None


def behind(prompt: Sequence[int], name: str = "p", **sampling: object) -> GenerationRequest:
    return GenerationRequest(
        prompt_token_ids=tuple(prompt),
        sampling=Sampling(**sampling),  # type: ignore[arg-type]
        decoder="shared-prefix",
        decoder_params={"prefix": name},
    )


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_an_answer_behind_a_prefix_is_that_to_the_joined_prompt(make_engine: MakeEngine, prefix_caching: bool) -> None:
    from chatserve.engine.llm import run_all

    engine = make_engine(prefix_caching=prefix_caching)
    register(engine, "p", PREFIX)
    suffixes = [[9, 8, 7], [1], [100, 101, 102, 103, 104]]
    shared = run_all(engine, [behind(suffix, temperature=0, max_tokens=9) for suffix in suffixes])
    joined = run_all(make_engine(), [request([*PREFIX, *suffix], temperature=0, max_tokens=9) for suffix in suffixes])
    assert answers(shared) == answers(joined)
    assert engine.stats()["blocks_used"] == engine.stats()["blocks_pinned"] == 6


def test_the_prefix_is_computed_once_and_its_last_block_is_copied_for_each_request(make_engine: MakeEngine) -> None:
    runner = FakeRunner(RandomLogits(VOCAB_SIZE, seed=3), record=True)
    engine = make_engine(runner)
    register(engine, "p", PREFIX)
    assert runner.num_tokens == 22
    for index in range(3):
        engine.submit(behind([index], max_tokens=1), lambda news: None)
    engine.step()
    assert runner.num_tokens == 22 + 3
    assert len(runner.batches[-1].copies) == 3
    assert engine.stats()["blocks_used"] == 6


def test_a_request_that_is_preempted_finds_its_prefix_again(make_engine: MakeEngine) -> None:
    from chatserve.engine.llm import run_all

    many = [behind([index, 7], seed=index, max_tokens=25, ignore_eos=True) for index in range(5)]
    roomy, tight = make_engine(num_blocks=90), make_engine(num_blocks=22, prefix_caching=False)
    for engine in (roomy, tight):
        register(engine, "p", PREFIX)
    assert answers(run_all(tight, many)) == answers(run_all(roomy, many))
    assert tight.stats()["preemptions"] > 0
    assert tight.stats()["blocks_used"] == 6


def test_removing_a_prefix_frees_it_and_running_requests_keep_their_share(make_engine: MakeEngine) -> None:
    engine = make_engine()
    register(engine, "p", PREFIX)
    heard: list[object] = []
    engine.submit(behind([1, 2], max_tokens=5, ignore_eos=True), heard.append)
    engine.step()
    engine.prefixes.remove("p")
    while engine.step():
        pass
    assert heard[-1] is None
    assert engine.stats()["blocks_used"] == 0
    with pytest.raises(RequestError, match="registered are: none"):
        engine.submit(behind([1]), lambda news: None)


def test_registering_a_name_again_replaces_it(make_engine: MakeEngine) -> None:
    engine = make_engine()
    register(engine, "p", PREFIX)
    register(engine, "p", PREFIX[:5])
    assert engine.prefixes.lengths() == {"p": 5}
    assert engine.stats()["blocks_used"] == 2


def test_prefixes_may_pin_at_most_half_of_the_pool(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=20)
    register(engine, "a", range(30))
    with pytest.raises(RequestError, match="would bring pinned blocks to 11; allowed are 10"):
        engine.register_prefix("b", tuple(range(100, 112)), lambda news: None)
    with pytest.raises(RequestError, match="the pool has 12"):
        engine.submit(request(range(60)), lambda news: None)


def test_prefixes_registered_at_once_do_not_pin_more_than_half_of_the_pool(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=64)
    heard: list[list[object]] = [[] for _ in range(4)]
    for number, news in enumerate(heard):
        engine.register_prefix(f"p{number}", tuple((7 * number + i) % 250 for i in range(100)), news.append)
    while engine.step():
        pass
    registered = engine.prefixes.lengths()
    assert len(registered) == 1
    for number, news in enumerate(heard):
        assert (news[-1] is None) == (f"p{number}" in registered)
        assert news[-1] is None or isinstance(news[-1], GenerationError)
    assert engine.stats()["blocks_pinned"] <= 32


def test_a_prefix_of_more_than_a_quarter_of_the_pool_can_be_replaced(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=64)
    for _ in range(2):
        register(engine, "p", [i % 250 for i in range(80)])
    assert engine.stats()["blocks_used"] == engine.stats()["blocks_pinned"] == 20


def test_a_prefix_and_a_prompt_beyond_the_context_are_refused(make_engine: MakeEngine) -> None:
    engine = make_engine(FakeRunner(RandomLogits(VOCAB_SIZE, seed=3), max_model_len=40))
    register(engine, "p", PREFIX)
    with pytest.raises(ContextLengthError, match="no room in the context of 40"):
        engine.submit(behind(range(18)), lambda news: None)
    assert engine.stats()["sequences"] == 0


@pytest.mark.parametrize("name", ["a b", "", "x/y", "é", "n" * 65])
def test_a_name_that_does_not_fit_into_a_path_is_refused(make_engine: MakeEngine, name: str) -> None:
    engine = make_engine()
    with pytest.raises(RequestError, match="must be 1 to 64 letters, digits, dots, dashes or underscores"):
        engine.register_prefix(name, (1, 2, 3), lambda news: None)
    assert engine.prefixes.lengths() == {}


@pytest.mark.parametrize("given", ["a=none.txt", "a", "=b", "a=bad.json"])
def test_files_of_prefixes_are_read_before_the_model_is_loaded(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text("[")
    with pytest.raises(ConfigError, match=f"^prefixes: '{given}' "):
        build_engine(Config(model="no/such-model", prefixes=(given,)))
