"""Which decoder a request gets, decoders over HTTP, and traces."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from chatserve.decoding import Context, Params, Sequence, decoder
from chatserve.errors import RequestError
from chatserve.server.bodies import CompletionBody
from chatserve.server.generation_requests import decoder_choice
from chatserve.testing import VOCAB_SIZE, RandomLogits
from tests.server.harness import Served, events, text_of

Start = Callable[..., Served]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (None, {})),
        ({"n": 3}, (None, {})),
        ({"decoder": "tree", "decoder_params": {"a": 1}}, ("tree", {"a": 1})),
        ({"use_beam_search": True}, ("beam", {})),
        ({"use_beam_search": True, "n": 3}, ("beam", {"width": 3})),
        ({"use_beam_search": True, "n": 2, "best_of": 5}, ("beam", {"width": 5})),
        ({"num_beams": 4}, ("beam", {"width": 4})),
        ({"num_beams": 4, "decoder_params": {"length_penalty": 2.0}}, ("beam", {"width": 4, "length_penalty": 2.0})),
        ({"num_beams": 4, "decoder": "greedy"}, ("greedy", {})),
        ({"num_beams": 1}, (None, {})),
        ({"best_of": 1}, (None, {})),
        ({"n": 2, "best_of": 2}, (None, {})),
        ({"n": 2, "best_of": 5}, ("best-of", {"best_of": 5})),
    ],
)
def test_the_choice(fields: dict[str, Any], expected: tuple[str | None, dict[str, Any]]) -> None:
    assert decoder_choice(CompletionBody(prompt="x", **fields)) == expected


def test_parameters_without_a_decoder_are_refused() -> None:
    with pytest.raises(RequestError, match="decoder_params"):
        decoder_choice(CompletionBody(prompt="x", decoder_params={"width": 2}))


def test_best_of_returns_n(start_server: Start) -> None:
    served = start_server(RandomLogits(VOCAB_SIZE, seed=5))
    answer = served.complete(n=2, best_of=5, max_tokens=6, seed=1).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] <= 12
    assert answer["usage"]["completion_tokens_details"]["computed_tokens"] > 12


def test_streamed_beam_search_equals_the_whole_answer(start_server: Start) -> None:
    served = start_server(RandomLogits(VOCAB_SIZE, seed=2, scale=20.0))
    body = {"use_beam_search": True, "num_beams": 3, "max_tokens": 16}
    whole = served.complete(**body).json()["choices"][0]
    with ThreadPoolExecutor(3) as pool:
        streams = list(pool.map(lambda _: events(served.complete(**body, stream=True).content), range(20)))
    assert {text_of(chunks) for chunks in streams} == {whole["text"]}
    assert {chunks[-1]["choices"][0]["finish_reason"] for chunks in streams} == {whole["finish_reason"]}
    assert served.is_idle()


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_pattern_that_is_slow_to_match_is_the_clients_fault(start_server: Start, is_stream: bool) -> None:
    """It shows on the answers only: as a status where nothing was sent, else as an error frame."""
    served = start_server("a" * 60 + "!")
    params = {"votes": 3, "pattern": "(a|aa)+$"}
    response = served.chat(decoder="majority", decoder_params=params, stream=is_stream)
    assert response.status_code == (200 if is_stream else 400)
    error = (events(response.content)[-1] if is_stream else response.json())["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "decoder_params.pattern")
    assert "takes too long to match" in error["message"]
    assert is_stream or response.headers["x-should-retry"] == "false"
    assert served.is_idle()
    assert served.chat(decoder="majority", decoder_params={"votes": 3, "pattern": "a+"}).status_code == 200


def test_a_decoder_may_refuse_its_parameters(served: Served) -> None:
    for is_stream in (False, True):
        response = served.complete(decoder="beam", decoder_params={"width": 2}, n=3, stream=is_stream)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "decoder_params.width"


@decoder("traced", params=Params)
async def traced(ctx: Context, prompt: Sequence, params: Params) -> None:
    """Greedy, with a record of each token."""
    while not prompt.ended:
        [best] = await ctx.sample([prompt])
        prompt.append(best)
        ctx.trace(token=best.token)
        ctx.publish(prompt)


def test_traces_ride_along_when_asked(start_server: Start) -> None:
    served = start_server("ab", extra_decoders=[traced])
    whole = served.complete(decoder="traced", return_trace=True).json()
    assert [record["token"] for record in whole["trace"]][:2] == [ord("a"), ord("b")]
    chunks = events(served.complete(decoder="traced", return_trace=True, stream=True).content)
    assert [record for chunk in chunks for record in chunk.get("trace", [])] == whole["trace"]
    assert "trace" not in served.complete(decoder="traced").json()
    silent = events(served.complete(decoder="traced", stream=True).content)
    assert not any("trace" in chunk for chunk in silent)
