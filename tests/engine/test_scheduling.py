"""Admission, preemption, order and exhaustion, seen from outside."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatserve.decoding import Registry
from chatserve.engine import Delta, EngineLimits
from chatserve.errors import ContextLengthError, RequestError
from chatserve.testing import END_TOKEN_ID, VOCAB_SIZE, FakeRunner, RandomLogits, Script, byte_vocabulary
from tests.engine.engines import CheckedEngine, MakeEngine, answers, complete, request


def test_figure_6_filled_slots_through_the_engine(make_engine: MakeEngine) -> None:
    """A 7-token prompt in blocks of 4: [4, 3] after prefill, then [4, 4], then [4, 4, 1]."""
    engine = make_engine()
    submitted = engine.submit(request(range(7), temperature=0, max_tokens=8, ignore_eos=True), lambda news: None)
    filled = []
    for _ in range(3):
        engine.step()
        filled.append(submitted.prompt._table.filled)
    assert filled == [[4, 3], [4, 4], [4, 4, 1]]


def test_a_prompt_that_can_never_fit_is_refused_at_once_and_others_run(make_engine: MakeEngine) -> None:
    """KV(8, 16), a 200-token prompt, then 5 tokens (case e1)."""
    engine = make_engine(num_blocks=8, block_size=16)
    with pytest.raises(ContextLengthError, match=r"needs 13 KV blocks of 16 tokens .* the pool has 8"):
        engine.submit(request(range(200)), lambda news: None)
    [completion] = complete(engine, request(range(5), max_tokens=3))
    assert completion.outputs[0].finish_reason is not None


def test_preempted_requests_finish_with_their_solo_answers(make_engine: MakeEngine) -> None:
    """KV(8, 16), two requests of 40 + 60 tokens at once (case e3): few preemptions, nothing lost or doubled."""
    both = [request(range(start, start + 40), temperature=0, max_tokens=60, ignore_eos=True) for start in (0, 50)]
    solo = [complete(make_engine(num_blocks=8, block_size=16), one)[0] for one in both]
    engine = make_engine(num_blocks=8, block_size=16)
    together = complete(engine, *both)
    assert answers(together) == answers(solo)
    assert [len(completion.outputs[0].token_ids) for completion in together] == [60, 60]
    assert 0 < engine.stats()["preemptions"] <= 5


def test_more_choices_than_the_pool_can_hold_are_refused(make_engine: MakeEngine) -> None:
    """KV(16, 16), n = 50 (case e5)."""
    engine = make_engine(num_blocks=16, block_size=16)
    with pytest.raises(RequestError, match="can never fit"):
        engine.submit(request(range(32), n=50, max_tokens=20, ignore_eos=True), lambda news: None)
    assert engine.stats()["blocks_used"] == 0
    complete(engine, request(range(32), n=12, max_tokens=5))


def test_a_request_that_outgrows_the_pool_on_its_own_ends_with_length(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=5, block_size=4)
    [completion] = complete(engine, request(range(10), temperature=0, max_tokens=100, ignore_eos=True))
    [output] = completion.outputs
    assert output.finish_reason == "length"
    assert len(output.token_ids) == 11  # 10 + 10 tokens fill the five blocks; the last one sampled has no slot
    assert engine.stats()["requests_exhausted"] == 1


def test_parallel_answers_that_outgrow_the_pool_all_end_with_length(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=9, block_size=4)
    [completion] = complete(engine, request(range(10), n=3, seed=1, max_tokens=100, ignore_eos=True))
    assert [output.finish_reason for output in completion.outputs] == ["length"] * 3
    assert all(output.token_ids for output in completion.outputs)


def test_twenty_requests_that_each_want_most_of_the_pool_finish_in_order_of_arrival(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=10, block_size=4)
    finished: list[int] = []

    def listener(index: int):  # type: ignore[no-untyped-def]
        return lambda news: finished.append(index) if news is None else None

    for index in range(20):
        engine.submit(request(range(index, index + 20), seed=index, max_tokens=16, ignore_eos=True), listener(index))
    while engine.step():
        pass
    assert finished == list(range(20))


def test_a_long_prompt_does_not_stall_running_answers(make_engine: MakeEngine) -> None:
    """Every step gives the running request its token while 400 tokens prefill in chunks."""
    engine = make_engine(num_blocks=200, max_batch_tokens=16)
    tokens: list[object] = []
    engine.submit(request(range(4), temperature=0, max_tokens=60, ignore_eos=True), tokens.append)
    engine.step()
    engine.submit(request([i % 200 for i in range(400)], temperature=0, max_tokens=2), lambda news: None)
    for expected in range(2, 20):
        engine.step()
        assert len(tokens) == expected


def test_a_short_prompt_does_not_wait_for_long_ones(make_engine: MakeEngine) -> None:
    """Its first token comes with the first step after it came, although long prompts came before."""
    engine = make_engine(num_blocks=400, max_batch_tokens=64)
    for start in range(3):
        engine.submit(request([(start + i) % 200 for i in range(400)], temperature=0, max_tokens=2), lambda news: None)
    engine.step()
    heard: list[object] = []
    engine.submit(request(range(20), temperature=0, max_tokens=5, ignore_eos=True), heard.append)
    engine.step()
    assert len(heard) == 1


def test_a_long_prompt_is_sure_of_half_of_the_tokens_beside_a_flood_of_short_ones(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=400, max_batch_tokens=64, max_prefill_tokens=32)
    heard: list[object] = []
    engine.submit(request([i % 200 for i in range(320)], temperature=0, max_tokens=2), heard.append)
    for step in range(20):
        for start in range(4):
            given = request(range(10 * start + step, 10 * start + step + 16), temperature=0, max_tokens=1)
            engine.submit(given, lambda news: None)
        assert not heard
        engine.step()
    assert heard


def test_prompts_take_at_most_their_share_of_a_step(make_engine: MakeEngine) -> None:
    runner = FakeRunner(RandomLogits(VOCAB_SIZE, seed=3), record=True)
    engine = make_engine(runner, num_blocks=200, max_batch_tokens=64, max_prefill_tokens=8)
    complete(
        engine, *(request(range(30 + index), max_tokens=20, n=3, seed=index, ignore_eos=True) for index in range(4))
    )
    num_prompt_tokens = [
        int(counts[counts > 1].sum()) for counts in (np.diff(batch.query_starts) for batch in runner.batches)
    ]
    assert max(num_prompt_tokens) == 8


@pytest.mark.parametrize("decoder", ["greedy", "speculative", "beam", "best-of"])
def test_no_decoder_reads_its_prompt_past_the_share_of_prompts(make_engine: MakeEngine, decoder: str) -> None:
    """Drafts of speculation are decoded; the prompt before them is not."""
    engine = make_engine(num_blocks=400, max_batch_tokens=64, max_prefill_tokens=16)
    repeating = [i % 7 for i in range(300)]
    engine.submit(request(range(4), temperature=0, max_tokens=60, ignore_eos=True), lambda news: None)
    engine.step()
    engine.submit(request(repeating, decoder, temperature=0, max_tokens=2), lambda news: None)
    short: list[object] = []
    engine.submit(request(range(10), temperature=0, max_tokens=2), short.append)
    for _ in range(2):
        step = engine.begin_step()
        assert step is not None
        assert step.batch.num_tokens <= 16 + 2  # the answer that runs, and perhaps the last token of a prompt
        step.run()
        engine.end_step(step)
    assert short


@settings(max_examples=30, deadline=None)
@given(
    common=st.integers(0, 60),
    own=st.lists(st.integers(1, 30), min_size=2, max_size=5),
    budget=st.integers(4, 64),
    block_size=st.sampled_from([1, 4, 16]),
)
def test_equal_beginnings_that_come_together_are_read_once(
    registry: Registry, common: int, own: list[int], budget: int, block_size: int
) -> None:
    """No more tokens run than when the requests come one after another."""
    prompts = [[*range(common), *[100 + index] * length] for index, length in enumerate(own)]
    requests = [request(prompt, temperature=0, max_tokens=1) for prompt in prompts]
    counts = []
    for groups in ([[one] for one in requests], [requests]):
        runner = FakeRunner(RandomLogits(VOCAB_SIZE, seed=3), record=True)
        limits = EngineLimits(num_blocks=400, block_size=block_size, max_batch_tokens=budget)
        engine = CheckedEngine(runner, byte_vocabulary(), registry, limits)
        for group in groups:
            complete(engine, *group)
        counts.append(sum(batch.num_tokens for batch in runner.batches))
    assert counts[1] == counts[0]


def test_the_token_budget_bounds_every_step(make_engine: MakeEngine) -> None:
    runner = FakeRunner(RandomLogits(VOCAB_SIZE, seed=3), record=True)
    engine = make_engine(runner, num_blocks=200, max_batch_tokens=24)
    complete(engine, *(request(range(30 + index), max_tokens=4, n=3, seed=index) for index in range(6)))
    assert max(batch.num_tokens for batch in runner.batches) == 24


def test_running_sequences_are_bounded(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=400, max_running_sequences=4)
    for index in range(6):
        engine.submit(request(range(8), n=2, seed=index, max_tokens=6), lambda news: None)
    while engine.has_work:
        engine.step()
        assert engine.stats()["requests_running"] <= 2


def test_aborting_gives_the_blocks_back_at_once(make_engine: MakeEngine) -> None:
    engine = make_engine()
    heard: list[object] = []
    queued = [engine.submit(request(range(60), n=3, seed=1, max_tokens=50), heard.append) for _ in range(4)]
    for _ in range(3):
        engine.step()
    num_heard = len(heard)
    for one in queued:
        engine.abort(one)
        engine.check_integrity()
    assert engine.stats()["blocks_used"] == 0
    assert not engine.step()
    assert len(heard) == num_heard


def test_aborting_between_the_halves_of_a_step_harms_nobody(make_engine: MakeEngine) -> None:
    other = request(range(30), seed=2, max_tokens=12)
    [solo] = complete(make_engine(), other)
    engine = make_engine()
    heard: list[Delta] = []
    leaving = engine.submit(request(range(50), seed=1, max_tokens=40), lambda news: None)
    engine.submit(other, lambda news: heard.append(news) if isinstance(news, Delta) else None)
    for _ in range(2):
        engine.step()
    step = engine.begin_step()
    assert step is not None
    engine.abort(leaving)
    step.run()
    engine.end_step(step)
    while engine.step():
        pass
    assert "".join(delta.text for delta in heard) == solo.outputs[0].text
    assert engine.stats()["blocks_used"] == 0


def test_an_answer_ends_at_the_context_length(make_engine: MakeEngine) -> None:
    runner = FakeRunner(Script([7] * 99, vocab_size=VOCAB_SIZE, end_token_id=END_TOKEN_ID), max_model_len=24)
    engine = make_engine(runner)
    [completion] = complete(engine, request(range(20), temperature=0, ignore_eos=True))
    assert (len(completion.outputs[0].token_ids), completion.outputs[0].finish_reason) == (4, "length")
    with pytest.raises(ContextLengthError, match="maximum context length is 24 tokens, but 24 tokens in the prompt"):
        engine.submit(request(range(24)), lambda news: None)
    with pytest.raises(ContextLengthError, match="20 tokens in the prompt and 5 for the answer"):
        engine.submit(request(range(20), max_tokens=5), lambda news: None)
