"""Beam search against transformers on tiny random models, and against brute force where the tree is small."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from chatserve.decoding import Registry, Sample, Sampling, Sequence
from chatserve.decoding.group import Rules, SequenceGroup
from chatserve.engine import Completion, Engine, EngineLimits, GenerationRequest
from chatserve.engine.llm import run_all
from chatserve.errors import RequestError
from chatserve.kv import BlockPool
from chatserve.models.runner import Runner
from chatserve.models.transformers_runner import TransformersRunner
from chatserve.testing import FakeRunner, RandomLogits, byte_vocabulary

VOCAB_SIZE, END, NUM_TOKENS = 97, 2, 10
PROMPTS = [[5, 17, 40, 3, 9], [11] * 7 + [50, 60], [90, 80, 70, 60, 50, 40, 30, 20, 10, 1, 4]]
SWEEP = list(itertools.product(["llama", "gpt2"], [2, 4, 8], [-1.0, 0.0, 1.0, 2.0], [False, True, "never"]))
Model: TypeAlias = Any


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    """Tiny random models whose end token is likely enough to end some hypotheses."""
    return _tiny_models(VOCAB_SIZE, end_scale=1.5)


@pytest.mark.parametrize(
    ("family", "width", "length_penalty", "early_stopping"),
    [*SWEEP[::7], ("llama", 32, 1.0, False), ("gpt2", 32, 0.0, "never")],
)
def test_equals_transformers(
    models: dict[str, Model], family: str, width: int, length_penalty: float, early_stopping: bool | str
) -> None:
    _compare(models[family], width, length_penalty, early_stopping)


@pytest.mark.full
@pytest.mark.parametrize(("family", "width", "length_penalty", "early_stopping"), SWEEP)
def test_equals_transformers_in_the_whole_sweep(
    models: dict[str, Model], family: str, width: int, length_penalty: float, early_stopping: bool | str
) -> None:
    _compare(models[family], width, length_penalty, early_stopping)


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0, 2.0])
def test_a_beam_as_wide_as_the_tree_finds_the_best_of_all_answers(length_penalty: float) -> None:
    """Four tokens, three steps: every answer can be scored by hand."""
    model = RandomLogits(4, seed=12, scale=3.0)
    best = max(_all_answers(model, [1, 3, 0], 3, 4), key=lambda answer: answer[1] / len(answer[0]) ** length_penalty)
    params = {"width": 64, "length_penalty": length_penalty, "early_stopping": "never"}
    completion = _beam_search(FakeRunner(model), [1, 3, 0], 1, params, max_tokens=3)
    assert completion.outputs[0].token_ids == best[0]


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_beam_as_wide_as_the_tree_of_a_real_model_finds_the_best_ten_of_all_answers(
    family: str, length_penalty: float
) -> None:
    """Four tokens, four steps: at most 27 live beams, and 121 answers, each computed on its own."""
    model, prompt = _tiny_models(4, end_scale=1.0)[family], [1, 3, 0]

    def normalised(answer: tuple[list[int], float]) -> float:
        return float(answer[1] / len(answer[0]) ** length_penalty)

    ranked = sorted(_all_answers(_plain_logits(model), prompt, 4, 4), key=normalised, reverse=True)
    assert len(ranked) == 1 + 3 + 9 + 108
    for early_stopping in (False, "never"):
        params = {"width": 64, "length_penalty": length_penalty, "early_stopping": early_stopping}
        completion = _beam_search(TransformersRunner(model, "tiny"), prompt, 10, params, max_tokens=4)
        assert [output.token_ids for output in completion.outputs] == [answer for answer, _ in ranked[:10]]
        scores = _scores(completion, length_penalty)
        np.testing.assert_allclose(scores, [normalised(answer) for answer in ranked[:10]], atol=1e-4)


def test_fewer_choices_are_the_best_of_more() -> None:
    model = RandomLogits(VOCAB_SIZE, seed=9, scale=5.0, end_token_ids=(END,), end_bias=2.0)
    whole = _beam_search(FakeRunner(model), [4, 5], 6, {"width": 6}).outputs
    for n in range(1, 6):
        assert _beam_search(FakeRunner(model), [4, 5], n, {"width": 6}).outputs == whole[:n]


def test_scores_are_normalised_by_the_generated_length_only() -> None:
    """A hundred prompt tokens; four tokens with a sum of -4 lose to eight with -6 (case c1)."""
    from decoders.beam import BeamParams, FinishedHypotheses

    short, long = _hypothesis(4, -1.0), _hypothesis(8, -0.75)
    finished = FinishedHypotheses(BeamParams(), 2, max_tokens=10)
    finished.offer(short)
    finished.offer(long)
    assert finished.best == [long, short]
    assert [finished.score(hypothesis) for hypothesis in finished.best] == [-0.75, -1.0]


def test_a_beam_that_meets_a_stop_string_is_finished_and_the_others_go_on() -> None:
    """Case c3, scripted: one beam writes "AB|C", one ends with the end token, one goes on; stop is "BC"."""
    completion = _beam_search(FakeRunner(_Tree()), [1, 1], 3, {"width": 3}, max_tokens=4, stop=("BC",), end=END)
    by_text = {output.text: output for output in completion.outputs}
    assert by_text["A"].token_ids == [65, 66, 67]
    assert by_text["A"].finish_reason == "stop"
    assert by_text["Z\x02"].token_ids == [90, END]  # the end token is an ordinary byte here, so it shows
    assert by_text["Z\x02"].finish_reason == "stop"
    assert by_text["YYYY"].finish_reason == "length"


def test_forbidden_tokens_are_never_returned() -> None:
    """With two tokens possible there are four answers of two tokens; all four choices are of them."""
    model = RandomLogits(VOCAB_SIZE, seed=4)

    class OnlyTwo:
        vocab_size = VOCAB_SIZE

        def __call__(self, context: Any) -> Any:
            row = np.full(VOCAB_SIZE, -np.inf, np.float32)
            row[[7, 8]] = model(context)[[7, 8]]
            return row

    completion = _beam_search(FakeRunner(OnlyTwo()), [3, 4], 4, {"width": 8}, max_tokens=2)
    assert {tuple(output.token_ids) for output in completion.outputs} == set(itertools.product([7, 8], repeat=2))


def test_what_is_streamed_is_never_taken_back() -> None:
    for seed in range(30):
        heard: list[Any] = []
        model = RandomLogits(VOCAB_SIZE, seed=seed, scale=5.0, end_token_ids=(END,), end_bias=2.0)
        engine = _engine(FakeRunner(model))
        engine.submit(_request([seed % 9, 4], 2, {"width": 4}, max_tokens=12), heard.append)
        while engine.step():
            engine.check_integrity()
        deltas = [news for news in heard if news is not None]
        assert heard[-1] is None, f"seed {seed}: {heard[-1]}"
        assert sorted(delta.choice for delta in deltas if delta.finish_reason) == [0, 1]


def test_a_width_of_32_works() -> None:
    completion = _beam_search(FakeRunner(RandomLogits(VOCAB_SIZE, seed=5)), [1, 2, 3], 4, {"width": 32})
    assert len({tuple(output.token_ids) for output in completion.outputs}) == 4


def test_more_choices_than_width_are_refused() -> None:
    with pytest.raises(RequestError, match="decoder_params.width: is 2, must be at least n = 3"):
        _beam_search(FakeRunner(RandomLogits(VOCAB_SIZE)), [1], 3, {"width": 2})


class _Tree:
    """Logits of a scripted tree over bytes: "ABC...", "Z" and an end, "YYYY...", in this order of likelihood."""

    vocab_size = 128

    def __call__(self, context: Any) -> Any:
        row = np.full(self.vocab_size, -20.0, np.float32)
        answer = bytes(context[2:].tolist())
        if not answer:
            row[[65, 90, 89]] = 3.0, 2.5, 2.0
        elif answer == b"Z":
            row[END] = 3.0
        else:
            row[{b"A": 66, b"AB": 67}.get(answer, 89)] = 3.0
        return row


def _compare(model: Model, width: int, length_penalty: float, early_stopping: bool | str) -> None:
    """Ids and scores of all returned hypotheses, for each prompt."""
    num_returned = min(3, width)
    params = {"width": width, "length_penalty": length_penalty, "early_stopping": early_stopping}
    for prompt in PROMPTS:
        expected, scores = _generate(model, prompt, num_returned, params)
        completion = _beam_search(TransformersRunner(model, "tiny"), prompt, num_returned, params)
        assert [output.token_ids for output in completion.outputs] == expected
        np.testing.assert_allclose(_scores(completion, length_penalty), scores, atol=1e-4, rtol=1e-4)


def _scores(completion: Completion, length_penalty: float) -> list[float]:
    return [
        sum(token.logprob or 0.0 for token in output.tokens) / len(output.tokens) ** length_penalty
        for output in completion.outputs
    ]


def _generate(
    model: Model, prompt: list[int], num_returned: int, params: dict[str, Any]
) -> tuple[list[list[int]], list[float]]:
    import torch

    model.set_attn_implementation("eager")
    given = torch.tensor([prompt])
    out = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        do_sample=False,
        num_beams=params["width"],
        num_return_sequences=num_returned,
        length_penalty=params["length_penalty"],
        early_stopping=params["early_stopping"],
        max_new_tokens=NUM_TOKENS,
        return_dict_in_generate=True,
        output_scores=True,
    )
    answers = [row[len(prompt) :].tolist() for row in out.sequences]
    cut = [answer[: answer.index(END) + 1] if END in answer else answer for answer in answers]
    return cut, out.sequences_scores.tolist()


def _beam_search(runner: Runner, prompt: list[int], n: int, params: dict[str, Any], **sampling: Any) -> Completion:
    engine = _engine(runner)
    [completion] = run_all(engine, [_request(prompt, n, params, **sampling)])
    assert engine.stats()["blocks_used"] == 0
    return completion


def _engine(runner: Runner) -> Engine:
    return Engine(runner, byte_vocabulary(), _REGISTRY, EngineLimits(num_blocks=400, block_size=4))


def _request(
    prompt: list[int], n: int, params: dict[str, Any], *, max_tokens: int = NUM_TOKENS, end: int = END, **sampling: Any
) -> GenerationRequest:
    """The byte vocabulary's own end token lies outside these small models; `end` takes its place."""
    given = Sampling(n=n, max_tokens=max_tokens, ignore_eos=True, stop_token_ids=(end,), top_logprobs=0, **sampling)
    return GenerationRequest(prompt_token_ids=tuple(prompt), sampling=given, decoder="beam", decoder_params=params)


def _hypothesis(length: int, mean: float) -> Sequence:
    pool = BlockPool(64, 16)
    rules = Rules(byte_vocabulary(), VOCAB_SIZE, frozenset(), (), None, 0, 100, 1000)
    sequence = Sequence(SequenceGroup(pool, rules, 8), [1] * 100, 100, 0)
    sequence.append([Sample(5, mean)] * length)
    return sequence


def _all_answers(
    logits: Callable[[Any], Any], prompt: list[int], max_tokens: int, vocab_size: int
) -> list[tuple[list[int], float]]:
    """Every complete answer with the sum of its log-probabilities."""
    complete, growing = [], [([], 0.0)]  # type: ignore[var-annotated]
    while growing:
        tokens, total = growing.pop()
        row = np.asarray(logits(np.array(prompt + tokens, np.int32)), np.float64)
        logprobs = row - row.max() - np.log(np.exp(row - row.max()).sum())
        for token in range(vocab_size):
            grown = ([*tokens, token], total + float(logprobs[token]))
            (complete if token == END or len(grown[0]) == max_tokens else growing).append(grown)
    return complete


def _tiny_models(vocab_size: int, end_scale: float) -> dict[str, Model]:
    import torch
    import transformers

    stock: Any = transformers
    torch.manual_seed(7)
    shape: dict[str, Any] = {"vocab_size": vocab_size, "eos_token_id": END, "bos_token_id": 1, "pad_token_id": 0}
    llama_shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    llama_config = stock.LlamaConfig(num_key_value_heads=2, initializer_range=0.3, **llama_shape, **shape)
    gpt2_config = stock.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.3, **shape)
    llama, gpt2 = stock.LlamaForCausalLM(llama_config), stock.GPT2LMHeadModel(gpt2_config)
    with torch.no_grad():
        llama.lm_head.weight[END] *= end_scale
    return {"llama": llama.eval(), "gpt2": gpt2.eval()}


def _plain_logits(model: Model) -> Callable[[Any], Any]:
    """The stock model's row behind a context, by a whole forward."""
    import torch

    def logits(context: Any) -> Any:
        model.set_attn_implementation("eager")
        with torch.no_grad():
            return model(torch.from_numpy(context).long()[None]).logits[0, -1].numpy()

    return logits


_REGISTRY = Registry.load()
