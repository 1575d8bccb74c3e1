"""The automatic prefix cache: hits change no token, and nothing is found that is not the same."""

from __future__ import annotations

from importlib.metadata import entry_points

import msgspec
import numpy as np
import pytest

from chatserve.decoding import Sampling
from chatserve.engine import GenerationRequest, PublishedToken
from chatserve.engine.llm import run_all
from chatserve.kv import prefix_index
from chatserve.testing import VOCAB_SIZE, FakeRunner, RandomLogits
from tests.engine.engines import MakeEngine, answers, complete, request

LONG = [(7 * i + 3) % 200 for i in range(41)]


def test_a_second_equal_prompt_computes_only_its_last_partial_block(make_engine: MakeEngine) -> None:
    runner = FakeRunner(RandomLogits(VOCAB_SIZE, seed=3))
    engine = make_engine(runner)
    cold, warm = (complete(engine, request(LONG, temperature=0, max_tokens=1))[0] for _ in range(2))
    assert answers([warm]) == answers([cold])
    assert (cold.usage.cached_tokens, warm.usage.cached_tokens) == (0, 40)
    assert runner.num_tokens == 41 + 1


def test_a_hit_never_covers_the_whole_prompt(make_engine: MakeEngine) -> None:
    """Forty tokens in blocks of four: the last block is computed again, since its last row is wanted."""
    engine = make_engine()
    for _ in range(2):
        [completion] = complete(engine, request(LONG[:40], temperature=0, max_tokens=1))
    assert completion.usage.cached_tokens == 36


@pytest.mark.parametrize("max_batch_tokens", [3, 512])
def test_warm_answers_equal_cold_ones(make_engine: MakeEngine, max_batch_tokens: int) -> None:
    """Questions behind one system prompt, and a second turn of each conversation (case d3)."""
    first = [request([*LONG, 250 - index, index], seed=index, max_tokens=9, n=1 + index % 2) for index in range(5)]
    second = [
        request([*one.prompt_token_ids, *completion.outputs[0].token_ids, 9, 9], max_tokens=9, seed=4)
        for one in first
        for completion in complete(make_engine(), one)
    ]
    cold = [complete(make_engine(prefix_caching=False, num_blocks=99), one)[0] for one in (*first, *second)]
    engine = make_engine(num_blocks=99, max_batch_tokens=max_batch_tokens)
    warm = [complete(engine, one)[0] for one in (*first, *second)]
    assert answers(warm) == answers(cold)
    assert all(completion.usage.cached_tokens >= 40 for completion in warm[1:])
    together = make_engine(num_blocks=99, max_batch_tokens=max_batch_tokens)
    assert answers(complete(together, *first)) == answers(cold[:5])


def test_a_recomputed_request_helps_itself_from_the_cache(make_engine: MakeEngine) -> None:
    runner = FakeRunner(RandomLogits(VOCAB_SIZE, seed=3))
    engine = make_engine(runner, num_blocks=30)
    both = [request(range(start, start + 50), temperature=0, max_tokens=30, ignore_eos=True) for start in (0, 60)]
    complete(engine, *both)
    assert engine.stats()["preemptions"] > 0
    assert engine.stats()["prefix_hit_tokens"] > 0


def test_equal_prompts_that_run_at_once_end_in_one_copy(make_engine: MakeEngine) -> None:
    """The second waits until the first has computed what both begin with; blocks of equal answers are merged."""
    engine = make_engine()
    for _ in range(2):
        engine.submit(request(LONG, temperature=0, max_tokens=20, ignore_eos=True), lambda news: None)
    engine.step()
    assert engine.stats()["blocks_used"] == 10 + 1
    engine.step()
    assert engine.stats()["blocks_used"] == 10 + 2
    for _ in range(12):
        engine.step()
    assert engine.stats()["blocks_used"] == 10 + 3 + 2


def test_other_salts_do_not_find_each_other(make_engine: MakeEngine) -> None:
    engine = make_engine()

    def salted(salt: str | None) -> GenerationRequest:
        given = request(LONG, temperature=0, max_tokens=1)
        return GenerationRequest(prompt_token_ids=given.prompt_token_ids, sampling=given.sampling, cache_salt=salt)

    hits = [complete(engine, salted(salt))[0].usage.cached_tokens for salt in ("a", "b", None, "a")]
    assert hits == [0, 0, 0, 40]


def test_the_least_recently_used_blocks_are_given_up_first(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=24)
    prompts = [[start + i for i in range(33)] for start in (0, 60, 120)]

    def hit(index: int) -> int:
        return complete(engine, request(prompts[index], temperature=0, max_tokens=1))[0].usage.cached_tokens

    assert [hit(0), hit(1), hit(0)] == [0, 0, 32]
    hit(2)  # needs 9 blocks; the last blocks of prompt 1 have been idle longest
    assert hit(0) == 32
    assert hit(1) < 32


def test_colliding_hashes_are_a_miss(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case d7: with a constant hash, other tokens, and equal tokens behind other ones, are told apart."""
    prompts = [LONG[:32], LONG[:20] + [5] * 12, [9] * 4 + LONG[4:32]]
    cold = [complete(make_engine(), request(prompt, temperature=0, max_tokens=6))[0] for prompt in prompts]
    monkeypatch.setattr(prefix_index, "_digest", lambda data: b"constant")
    engine = make_engine()
    for _ in range(2):
        warm = [complete(engine, request(prompt, temperature=0, max_tokens=6))[0] for prompt in prompts]
        assert answers(warm) == answers(cold)


def test_prompt_logprobs_are_those_of_the_model_cold_and_warm(make_engine: MakeEngine) -> None:
    """Case d1: cached positions have no logits, so they are run again."""
    model = RandomLogits(VOCAB_SIZE, seed=3)
    engine = make_engine(FakeRunner(model))
    expected = [_logprob(model, LONG, position) for position in range(1, len(LONG))]
    for _ in range(3):
        heard: list[object] = []
        plain = request(LONG, temperature=0, max_tokens=1, top_logprobs=1)
        given = GenerationRequest(prompt_token_ids=plain.prompt_token_ids, sampling=plain.sampling, prompt_logprobs=1)
        submitted = engine.submit(given, heard.append)
        while engine.step():
            pass
        scored = submitted.prompt_logprobs
        assert scored is not None
        assert heard[-1] is None
        assert scored[0].logprob is None
        assert [token.logprob for token in scored[1:]] == pytest.approx(expected, abs=1e-4)
        _check_alternatives(scored)
        complete(engine, request([*LONG[:16], 3, 3, 3], max_tokens=1))


@pytest.mark.parametrize("decoder", [point.name for point in entry_points(group="chatserve.decoders")])
def test_prompt_logprobs_with_any_decoder_change_nothing_else(make_engine: MakeEngine, decoder: str) -> None:
    """Some decoders free their prompt before the first await, or put it behind a prefix."""
    model = RandomLogits(VOCAB_SIZE, seed=3)
    engine = make_engine(FakeRunner(model))
    engine.register_prefix("p", tuple(range(9)), lambda news: None)
    while engine.step():
        pass
    pinned = engine.stats()["blocks_used"]
    params = {"prefix": "p"} if decoder == "shared-prefix" else {}
    sampling = Sampling(seed=7, max_tokens=5)
    plain = GenerationRequest(
        prompt_token_ids=tuple(LONG), sampling=sampling, decoder=decoder, decoder_params=params, cache_salt="a"
    )
    scoring = msgspec.structs.replace(plain, prompt_logprobs=1, cache_salt="b")
    [expected] = run_all(engine, [plain])
    heard: list[object] = []
    submitted = engine.submit(scoring, heard.append)
    while engine.step():
        pass
    assert heard[-1] is None
    assert submitted.published_token_ids() == [expected.outputs[0].token_ids]
    assert submitted.prompt_logprobs is not None
    found = [token.logprob for token in submitted.prompt_logprobs[1:]]
    assert found == pytest.approx([_logprob(model, LONG, position) for position in range(1, len(LONG))], abs=1e-4)
    own = len(LONG) if decoder == "shared-prefix" else 1  # there the prompt stands behind something else
    assert submitted.usage.computed_tokens <= expected.usage.computed_tokens + own
    assert engine.stats()["blocks_used"] == pinned


def _check_alternatives(scored: list[PublishedToken]) -> None:
    for token in scored[1:]:
        assert token.logprob is not None
        [best] = token.top
        assert best.logprob is not None
        assert best.logprob >= token.logprob - 1e-6


def _logprob(model: RandomLogits, tokens: list[int], position: int) -> float:
    row = model(np.array(tokens[:position], np.int32)).astype(np.float64)
    return float(row[tokens[position]] - row.max() - np.log(np.exp(row - row.max()).sum()))
