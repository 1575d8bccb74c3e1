from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from chatserve.models.batch import Batch, Float32Array, Int32Array
from chatserve.models.runner import Runner
from chatserve.testing import ConstantRunner, FakeRunner, Faulty, LogitsFunction, RandomLogits, Script

VOCAB_SIZE = 260
END = 256


def ints(values: list[int]) -> Int32Array:
    return np.asarray(values, np.int32)


def prefill(tokens: list[int], start: int = 0) -> Batch:
    """The tokens from `start` on of a sequence that lies in the blocks 0, 1, 2, ... of 4 slots."""
    positions = list(range(start, len(tokens)))
    blocks = -(-len(tokens) // 4)
    return Batch(
        token_ids=ints(tokens[start:]),
        positions=ints(positions),
        slots=ints(positions),
        query_starts=ints([0, len(positions)]),
        context_lens=ints([len(tokens)]),
        block_tables=ints(list(range(blocks)))[None],
        wanted=ints([len(positions) - 1]),
    )


def make_runner(logits: LogitsFunction, **options: float) -> FakeRunner:
    runner = FakeRunner(logits, **options)  # type: ignore[arg-type]
    runner.allocate(64, 4)
    return runner


def write(logits: LogitsFunction, prompt: list[int], count: int) -> list[int]:
    """Greedy decoding of `count` tokens without a runner."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits(ints(tokens)).argmax()))
    return tokens[len(prompt) :]


def test_random_logits_depend_on_the_whole_context_and_the_seed() -> None:
    logits = RandomLogits(VOCAB_SIZE, seed=1)
    row = logits(ints([1, 2, 3]))
    assert row.shape == (VOCAB_SIZE,)
    assert row.dtype == np.float32
    assert np.array_equal(row, RandomLogits(VOCAB_SIZE, seed=1)(ints([1, 2, 3])))
    others = [logits(ints([0, 2, 3])), logits(ints([2, 3])), RandomLogits(VOCAB_SIZE, seed=2)(ints([1, 2, 3]))]
    assert not any(np.array_equal(row, other) for other in others)


def test_the_end_can_be_favoured() -> None:
    contexts = [ints([i]) for i in range(200)]
    plain = [RandomLogits(VOCAB_SIZE)(c) for c in contexts]
    biased = RandomLogits(VOCAB_SIZE, end_token_ids=(END,), end_bias=7.9)
    assert sum(int(row.argmax()) == END for row in plain) < 5
    assert sum(int(biased(c).argmax()) == END for c in contexts) > 100
    assert np.allclose(biased(contexts[0])[:END], plain[0][:END])


def test_the_runner_gives_the_row_of_each_wanted_context() -> None:
    logits = RandomLogits(VOCAB_SIZE)
    runner = make_runner(logits)
    batch = replace(prefill([5, 6, 7, 8, 9]), wanted=ints([1, 4]))
    rows = runner.forward(batch)
    assert np.array_equal(rows, [logits(ints([5, 6])), logits(ints([5, 6, 7, 8, 9]))])
    rows[:] = 0  # the caller may change them
    assert np.array_equal(runner.forward(replace(batch, wanted=ints([1])))[0], logits(ints([5, 6])))
    assert runner.forward(replace(batch, wanted=ints([]))).shape == (0, VOCAB_SIZE)
    assert (runner.num_forwards, runner.num_tokens, runner.batches) == (3, 15, [])


def test_a_script_is_written_after_any_prompt_and_then_the_end() -> None:
    logits = Script([7, 8, 9], vocab_size=VOCAB_SIZE, end_token_id=END)
    for prompt in ([1, 2, 3], [4], [1, 2, 3], [7, 7], [4, 4], [1, 2, 3, 7, 5]):
        assert write(logits, prompt, 5) == [7, 8, 9, END, END]


def test_a_script_survives_recomputation() -> None:
    logits = Script([7, 8, 9], vocab_size=VOCAB_SIZE, end_token_id=END)
    runner = make_runner(logits)
    tokens = [1, 2, 3, 4, 5]
    runner.forward(replace(prefill(tokens[:3]), wanted=ints([])))  # a first chunk of the prompt
    for expected in (7, 8, 9, END):
        assert runner.forward(prefill(tokens, 3 if len(tokens) == 5 else len(tokens) - 1))[0].argmax() == expected
        assert runner.forward(prefill(tokens))[0].argmax() == expected  # preempted: all of it again
        tokens.append(expected)


def test_scripts_by_prompt() -> None:
    logits = Script({(1, 2): [7, 8], (1, 2, 7): [9]}, vocab_size=VOCAB_SIZE, end_token_id=END)
    assert write(logits, [1, 2, 7], 2) == [9, END]
    assert write(logits, [3], 2) == [END, END]
    assert write(Script({(1, 2): [7, 8]}, vocab_size=VOCAB_SIZE, end_token_id=END), [1, 2], 3) == [7, 8, END]


def test_a_script_with_the_ids_of_a_large_vocabulary() -> None:
    logits = Script([35542, 33203], vocab_size=49152, end_token_id=2)
    assert write(logits, [1], 3) == [35542, 33203, 2]
    logprob = 30.0 - np.log(np.exp(logits(ints([1])).astype(np.float64)).sum())
    assert -1e-6 < logprob <= 0  # the scripted token is all but certain


def test_a_faulty_model_answers_nan_or_raises() -> None:
    inner = RandomLogits(VOCAB_SIZE)
    silent = Faulty(inner, lambda context: 13 in context)
    assert np.isnan(silent(ints([1, 13]))).all()
    assert np.array_equal(silent(ints([1])), inner(ints([1])))
    loud = Faulty(inner, lambda context: len(context) == 2, ValueError("boom"))
    with pytest.raises(ValueError, match="boom"):
        make_runner(loud).forward(prefill([1, 13]))


def test_a_forward_can_be_made_to_fail_or_to_take_time() -> None:
    runner = FakeRunner(RandomLogits(VOCAB_SIZE), raise_at={1: RuntimeError("boom")}, delay=0.02, record=True)
    runner.allocate(8, 4)
    begin = time.perf_counter()
    first = prefill([1])
    runner.forward(first)
    assert time.perf_counter() - begin >= 0.02
    with pytest.raises(RuntimeError, match="boom"):
        runner.forward(prefill([1, 2], 1))
    runner.forward(prefill([1, 2], 1))
    assert len(runner.batches) == 3
    assert runner.batches[0] is first


def test_the_life_of_a_runner_is_checked() -> None:
    runner = FakeRunner(RandomLogits(VOCAB_SIZE), max_model_len=100, name="x")
    assert (runner.info.name, runner.info.vocab_size, runner.info.max_model_len) == ("x", VOCAB_SIZE, 100)
    assert runner.info.is_batch_invariant
    with pytest.raises(AssertionError, match="before allocate"):
        runner.forward(prefill([1]))
    runner.allocate(8, 4)
    with pytest.raises(AssertionError, match="twice"):
        runner.allocate(8, 4)
    with pytest.raises(AssertionError, match="token id"):
        runner.forward(prefill([VOCAB_SIZE]))
    with pytest.raises(AssertionError, match="chunk 0: a slot of its context was never written"):
        runner.forward(prefill([1, 2], 1))
    runner.close()
    with pytest.raises(AssertionError, match="after close"):
        runner.forward(prefill([1]))


def test_any_function_of_the_context_will_do() -> None:
    class Successor:
        """Favours the last token plus one."""

        vocab_size = VOCAB_SIZE

        def __call__(self, context: Int32Array) -> Float32Array:
            row = np.zeros(VOCAB_SIZE, np.float32)
            row[context[-1] + 1] = 1
            return row

    assert write(Successor(), [3], 3) == [4, 5, 6]
    assert make_runner(Successor()).forward(prefill([9]))[0].argmax() == 10


def test_the_constant_runner_checks_nothing_and_copies_nothing() -> None:
    runner: Runner = ConstantRunner(np.arange(5, dtype=np.float32), max_rows=4)
    runner.allocate(8, 4)
    rows = runner.forward(replace(prefill([1, 2, 3], 2), wanted=ints([0])))
    assert rows.tolist() == [[0, 1, 2, 3, 4]]
    assert np.shares_memory(rows, runner.forward(prefill([7, 8])))
    assert runner.info.vocab_size == 5
    runner.close()
