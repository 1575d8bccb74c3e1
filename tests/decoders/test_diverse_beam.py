"""Diverse beam search: without a penalty the groups agree, with one they part; one group is beam search."""

from __future__ import annotations

from typing import Any

import pytest

from chatserve.decoding import Registry, Sampling
from chatserve.engine import Completion, Engine, EngineLimits, GenerationRequest
from chatserve.engine.llm import run_all
from chatserve.errors import RequestError
from chatserve.testing import FakeRunner, RandomLogits, byte_vocabulary


def search(decoder: str, n: int, seed: int = 1, stop: tuple[str, ...] = (), **params: Any) -> Completion:
    model = RandomLogits(260, seed=seed, scale=6.0, end_token_ids=(256,), end_bias=2.0)
    engine = Engine(FakeRunner(model), byte_vocabulary(), _REGISTRY, EngineLimits(num_blocks=200, block_size=4))
    given = Sampling(n=n, max_tokens=10, top_logprobs=0, stop=stop)
    request = GenerationRequest(
        prompt_token_ids=(1, 2, 3, 4, 5), sampling=given, decoder=decoder, decoder_params=params
    )
    [completion] = run_all(engine, [request])
    engine.check_integrity()
    assert engine.stats()["blocks_used"] == 0
    return completion


@pytest.mark.parametrize("seed", range(6))
def test_one_group_is_beam_search(seed: int) -> None:
    beams = search("beam", 3, seed, width=4)
    assert search("diverse-beam", 3, seed, width=4, groups=1).outputs == beams.outputs


@pytest.mark.parametrize("seed", range(6))
def test_groups_without_a_penalty_find_the_same(seed: int) -> None:
    first, second = search("diverse-beam", 2, seed, width=4, groups=2, diversity_penalty=0.0).outputs
    assert first == second
    assert first.token_ids == search("beam", 1, seed, width=2).outputs[0].token_ids


def test_a_penalty_parts_the_groups_and_keeps_true_log_probabilities() -> None:
    outputs = search("diverse-beam", 4, width=4, groups=4, diversity_penalty=3.0).outputs
    assert len({output.token_ids[0] for output in outputs}) == 4
    alone = search("beam", 1, width=1).outputs[0]
    assert outputs[0].tokens == alone.tokens


def test_an_emptied_group_and_stop_strings_do_no_harm() -> None:
    for seed in range(8):
        completion = search("diverse-beam", 2, seed, ("a", "e", "0"), width=4, groups=2)
        assert all(output.finish_reason for output in completion.outputs)


def test_a_width_that_groups_do_not_divide_is_refused() -> None:
    with pytest.raises(RequestError, match="must be a multiple of groups"):
        search("diverse-beam", 1, width=5, groups=2)


_REGISTRY = Registry.load()
