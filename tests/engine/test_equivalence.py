"""Alone, in a batch, in chunks, after preemption: the same tokens, whatever the load."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from chatserve.decoding import Registry, derive_seed
from chatserve.engine import Engine, EngineLimits, GenerationRequest
from chatserve.testing import END_TOKEN_ID, VOCAB_SIZE, FakeRunner, RandomLogits, byte_vocabulary
from tests.engine.engines import CheckedEngine, MakeEngine, answers, complete, request

SIXTEEN = [
    request(
        range(index, index + 5 + 7 * (index % 5)),
        seed=index,
        temperature=(0.0, 0.7, 1.0)[index % 3],
        top_p=0.9 if index % 2 else 1.0,
        repetition_penalty=1.2 if index % 4 == 3 else 1.0,
        n=1 + 2 * (index % 6 == 5),
        max_tokens=20,
        stop=("a", "zz") if index % 5 == 4 else (),
    )
    for index in range(16)
]


def test_greedy_is_the_argmax_of_the_model_at_every_step(make_engine: MakeEngine) -> None:
    model = RandomLogits(VOCAB_SIZE, seed=8)
    [completion] = complete(make_engine(FakeRunner(model)), request(range(9), temperature=0, max_tokens=15))
    context = list(range(9))
    while len(context) < 9 + 15 and END_TOKEN_ID not in context[9:]:
        context.append(int(model(np.array(context, np.int32)).argmax()))
    assert completion.outputs[0].token_ids == context[9:]


@pytest.mark.parametrize(
    "limits",
    [
        {"num_blocks": 2000},
        {"num_blocks": 2000, "max_batch_tokens": 7},
        {"num_blocks": 2000, "max_batch_tokens": 1},
        {"num_blocks": 2000, "max_running_sequences": 3},
        {"num_blocks": 30},
        {"num_blocks": 30, "max_batch_tokens": 5},
        {"num_blocks": 30, "block_size": 4, "max_running_sequences": 5},
        {"num_blocks": 120, "block_size": 1},
        {"num_blocks": 12, "block_size": 16},
    ],
    ids=str,
)
def test_a_batch_of_sixteen_equals_sixteen_solo_runs(make_engine: MakeEngine, limits: dict[str, int]) -> None:
    solo = [complete(make_engine(num_blocks=500), one)[0] for one in SIXTEEN]
    engine = make_engine(**limits)
    assert answers(complete(engine, *SIXTEEN)) == answers(solo)
    if limits == {"num_blocks": 30}:
        assert engine.stats()["preemptions"] > 0


@given(data=st.data())
@hypothesis_settings(max_examples=25)
def test_arrivals_and_sizes_change_no_token(data: st.DataObject) -> None:
    """Requests that arrive at drawn steps, under drawn limits, against each request alone."""
    requests = data.draw(st.lists(st.sampled_from(SIXTEEN), min_size=2, max_size=8))
    gaps = [data.draw(st.integers(0, 6)) for _ in requests]
    block_size = data.draw(st.sampled_from([2, 4, 8]))
    engine = _engine(
        num_blocks=data.draw(st.integers(110, 250)) // block_size,  # any of them fits alone
        block_size=block_size,
        max_batch_tokens=data.draw(st.sampled_from([1, 3, 16, 512])),
    )
    heard: list[list[object]] = [[] for _ in requests]
    for one, gap, news in zip(requests, gaps, heard, strict=True):
        engine.submit(one, news.append)
        for _ in range(gap):
            engine.step()
    while engine.has_work:
        engine.step()
    for one, news in zip(requests, heard, strict=True):
        assert _texts(news) == _texts(_solo(one))
    assert engine.stats()["blocks_used"] == 0


def test_parallel_equals_single_runs_with_the_derived_seeds(make_engine: MakeEngine) -> None:
    together = complete(make_engine(), request(range(100), n=4, seed=77, max_tokens=12))[0]
    for index, output in enumerate(together.outputs):
        single = complete(make_engine(), request(range(100), seed=derive_seed(77, index), max_tokens=12))[0]
        assert output.token_ids == single.outputs[0].token_ids
    assert len({tuple(output.token_ids) for output in together.outputs}) > 1


def test_more_choices_do_not_change_the_first_ones(make_engine: MakeEngine) -> None:
    few = complete(make_engine(), request(range(10), n=2, seed=5, max_tokens=9))[0]
    many = complete(make_engine(), request(range(10), n=6, seed=5, max_tokens=9))[0]
    one = complete(make_engine(), request(range(10), seed=5, max_tokens=9))[0]
    assert many.outputs[:2] == few.outputs
    assert many.outputs[:1] == one.outputs


def test_parallel_prefills_once_and_shares_every_full_prompt_block(make_engine: MakeEngine) -> None:
    """n = 4 on a 100-token prompt in blocks of 16: six full blocks are shared, the seventh is copied three times."""
    runner = FakeRunner(RandomLogits(VOCAB_SIZE, seed=3), record=True)
    engine = make_engine(runner, num_blocks=40, block_size=16)
    engine.submit(request(range(100), n=4, seed=1, max_tokens=8, ignore_eos=True), lambda news: None)
    engine.step()
    assert runner.batches[0].num_tokens == 100
    assert engine.stats()["blocks_used"] == 7
    engine.step()
    assert engine.stats()["blocks_used"] == 6 + 4
    assert len(runner.batches[1].copies) == 3
    tables = runner.batches[1].block_tables
    assert (tables[:, :6] == tables[0, :6]).all()
    assert len(set(tables[:, 6].tolist())) == 4
    while engine.step():
        pass
    assert runner.num_tokens == 100 + 4 * 7


def test_the_same_seed_gives_the_same_answer_and_no_seed_another(make_engine: MakeEngine) -> None:
    def run(seed: int | None) -> list[int]:
        return complete(make_engine(), request(range(10), seed=seed, max_tokens=12))[0].outputs[0].token_ids

    assert run(1) == run(1) == run(1 + 2**64)
    assert len({tuple(run(None)) for _ in range(4)} | {tuple(run(1))}) > 2


def _engine(**limits: Any) -> Engine:
    model = RandomLogits(VOCAB_SIZE, seed=3, end_token_ids=(END_TOKEN_ID,), end_bias=2.0)
    return CheckedEngine(FakeRunner(model), byte_vocabulary(), _REGISTRY, EngineLimits(**limits))


def _solo(one: GenerationRequest) -> list[object]:
    key = id(one)
    if key not in _SOLO:
        engine, news = _engine(num_blocks=500), []  # type: ignore[var-annotated]
        engine.submit(one, news.append)
        while engine.step():
            pass
        _SOLO[key] = news
    return _SOLO[key]


def _texts(news: list[object]) -> dict[int, tuple[str, str | None]]:
    """Text and finish reason of each choice; the last news must be the end."""
    texts: dict[int, tuple[str, str | None]] = {}
    *deltas, end = news
    assert end is None
    for delta in deltas:
        text, reason = texts.get(delta.choice, ("", None))  # type: ignore[attr-defined]
        assert reason is None, "a delta after the finish reason"
        texts[delta.choice] = (text + delta.text, delta.finish_reason)  # type: ignore[attr-defined]
    return texts


_REGISTRY = Registry.load()
_SOLO: dict[int, list[object]] = {}
