"""Parameters outside their ranges are refused before any work, by name."""

from __future__ import annotations

from typing import Any

import pytest

from chatserve.decoding import Context, Params, Registry, Sampling, Sequence, decoder
from chatserve.engine import Engine, EngineLimits, GenerationRequest
from chatserve.engine.validation import check_sampling
from chatserve.errors import DecoderError, RequestError
from chatserve.testing import VOCAB_SIZE, FakeRunner, RandomLogits, byte_vocabulary


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_k", -1),
        ("min_p", 2.0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -3.0),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-40),
        ("n", 0),
        ("n", 10**400),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("top_logprobs", 1000),
        ("stop", ("",)),
        ("stop", ("x" * 3000,)),
        ("stop", ("x",) * 65),
        ("stop_token_ids", (VOCAB_SIZE,)),
        ("logit_bias", {VOCAB_SIZE: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", {1: float("nan")}),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, bad: Any) -> None:
    with pytest.raises(RequestError) as refused:
        check_sampling(Sampling(**{field: bad}), VOCAB_SIZE)
    assert refused.value.param == field


@decoder("unprintable")
async def unprintable(ctx: Context, prompt: Sequence, params: Params) -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    await ctx.sample([prompt])
    raise OddError


@decoder("odd-trace")
async def odd_trace(ctx: Context, prompt: Sequence, params: Params) -> None:
    ctx.trace(strange=object())
    prompt.append(await ctx.sample([prompt]))
    ctx.publish(prompt)


@pytest.mark.parametrize(("name", "message"), [("unprintable", "cannot be shown"), ("odd-trace", "trace: ")])
def test_odd_plugins_end_their_own_request_only(name: str, message: str) -> None:
    registry = Registry.load()
    for added in (unprintable, odd_trace):
        registry.add(added)
    model = RandomLogits(VOCAB_SIZE, seed=3)
    engine = Engine(FakeRunner(model), byte_vocabulary(), registry, EngineLimits(num_blocks=64, block_size=4))
    heard: list[object] = []
    try:
        sampling = Sampling(max_tokens=3)
        given = GenerationRequest(prompt_token_ids=(1, 2), sampling=sampling, decoder=name, return_trace=True)
        engine.submit(given, heard.append)
        while engine.step():
            pass
        error = heard[-1]
    except DecoderError as raised:
        error = raised
    assert isinstance(error, DecoderError)
    assert message in error.message
    assert engine.stats()["sequences"] == engine.stats()["blocks_used"] == 0
