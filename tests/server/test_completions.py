"""``/v1/completions``: prompts in four forms, echo, and the four parallel lists of log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chatserve.testing import VOCAB_SIZE, RandomLogits
from tests.server.harness import Served, events, eventually, text_of

Start = Callable[..., Served]


def lists_of(chunks: list[Any], choice: int = 0) -> dict[str, list[Any]]:
    """The log-probability lists of one choice, joined over the chunks of a stream."""
    joined: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for chunk in chunks:
        for part in chunk["choices"]:
            if part["index"] == choice and part["logprobs"]:
                for name, values in part["logprobs"].items():
                    joined[name] += values
    return joined


def test_both_modes_through_the_client(served: Served) -> None:
    whole = served.openai.completions.create(model="fake", prompt="Hi")
    assert whole.object == "text_completion"
    assert whole.choices[0].text == "Hello!"
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(served.openai.completions.create(model="fake", prompt="Hi", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello!"
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"


def test_the_prompt_is_tokenised_without_additions(served: Served) -> None:
    assert served.http.post("/tokenize", json={"prompt": "hi"}).json()["tokens"] == [ord("h"), ord("i")]
    assert served.complete(prompt="hi").json()["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize("fields", [{}, {"max_tokens": None}])
def test_sixteen_tokens_by_default(start_server: Start, fields: dict[str, Any]) -> None:  # case b3
    answer = start_server("x" * 40).complete(**fields).json()
    assert answer["choices"][0]["text"] == "x" * 16
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([97, 98], ["ab"]),
        ([[97, 98], [99]], ["ab", "c"]),
    ],
)
def test_every_form_of_prompt(served: Served, prompt: object, texts: list[str]) -> None:
    whole = served.complete(prompt=prompt, echo=True).json()
    assert [choice["index"] for choice in whole["choices"]] == list(range(len(texts)))
    assert [choice["text"] for choice in whole["choices"]] == [text + "Hello!" for text in texts]
    assert whole["usage"]["prompt_tokens"] == sum(map(len, texts))
    chunks = events(served.complete(prompt=prompt, echo=True, stream=True).content)
    assert [text_of(chunks, index) for index in range(len(texts))] == [text + "Hello!" for text in texts]


def test_choices_count_on_over_prompts(served: Served) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "echo": True}
    texts = ["aHello!", "aHello!", "bHello!", "bHello!"]
    assert [choice["text"] for choice in served.complete(**body).json()["choices"]] == texts
    stream = served.complete(**body, stream=True, stream_options={"include_usage": True})
    chunks = events(stream.content)
    assert [text_of(chunks, index) for index in range(4)] == texts
    assert chunks[-1]["usage"]["completion_tokens"] == 4 * 7
    finishes = [c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(finishes) == [0, 1, 2, 3]


@pytest.mark.parametrize("is_stream", [False, True])
def test_echo_with_logprobs(served: Served, is_stream: bool) -> None:
    response = served.complete(prompt="ab", echo=True, logprobs=1, max_tokens=2, stream=is_stream)
    chunks = events(response.content) if is_stream else [response.json()]
    lists = lists_of(chunks)
    assert lists["tokens"] == ["a", "b", "H", "e"]
    assert lists["text_offset"] == [0, 1, 2, 3]
    assert lists["token_logprobs"][0] is None
    assert lists["top_logprobs"][0] is None
    # The script gives "H" a logit of 30 and every other token 0, also after "a", where "b" really stands.
    assert lists["token_logprobs"][1] == pytest.approx(-30, abs=0.01)
    assert lists["top_logprobs"][1]["H"] == pytest.approx(0, abs=0.01)
    assert lists["top_logprobs"][1]["b"] == lists["token_logprobs"][1]
    assert lists["token_logprobs"][2] == pytest.approx(0, abs=0.01)
    assert text_of(chunks) == "abHe"


def test_prompt_logprobs_do_not_depend_on_what_is_cached(start_server: Start) -> None:
    served = start_server(RandomLogits(VOCAB_SIZE, seed=3))
    first, shorter = "abcdefghijklmnopqrstuvwxyz0123456", "abcdefghijklmnop-other"
    fields = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    cold = [served.complete(prompt=prompt, **fields).json()["choices"][0]["logprobs"] for prompt in (first, shorter)]
    warm = [served.complete(prompt=prompt, **fields).json()["choices"][0]["logprobs"] for prompt in (first, shorter)]
    assert [lists["token_logprobs"] for lists in warm] == [lists["token_logprobs"] for lists in cold]


def test_offsets_count_characters_and_run_on_over_chunks(start_server: Start) -> None:
    served = start_server("é🦙x")
    whole = served.complete(logprobs=0).json()["choices"][0]["logprobs"]
    assert whole["text_offset"][:7] == [0, 0, 1, 1, 1, 1, 2]
    streamed = lists_of(events(served.complete(logprobs=0, stream=True).content))
    assert streamed == whole


def test_logprobs_name_the_token_itself_even_when_it_is_not_among_the_best(served: Served) -> None:
    lists = served.complete(logprobs=0, max_tokens=1).json()["choices"][0]["logprobs"]
    assert lists["top_logprobs"] == [{"H": lists["token_logprobs"][0]}]


def test_seeded_choices_differ_from_each_other_and_repeat_under_load(start_server: Start) -> None:  # case b9
    served = start_server(RandomLogits(VOCAB_SIZE, seed=1), delay=0.002)
    body = {"n": 4, "seed": 123, "temperature": 1, "max_tokens": 12}
    first = [choice["text"] for choice in served.complete(**body).json()["choices"]]
    assert len(set(first)) == 4
    neighbours = [
        served.connect("/v1/completions", {"prompt": f"n{i}", "max_tokens": 400, "ignore_eos": True}) for i in range(3)
    ]
    assert eventually(lambda: served.stat("requests_running") == 3)
    second = [choice["text"] for choice in served.complete(**body).json()["choices"]]
    for connection in neighbours:
        connection.close()
    assert second == first


def test_stop_inside_a_token_sequence_in_both_modes(start_server: Start) -> None:
    served = start_server("OK?!")
    assert served.complete(stop=["!"]).json()["choices"][0]["text"] == "OK?"
    chunks = events(served.complete(stop=["!"], stream=True).content)
    assert text_of(chunks) == "OK?"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_refused_prompt_takes_the_others_with_it(served: Served) -> None:
    response = served.complete(prompt=[[97], [VOCAB_SIZE]])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt[1]"
    assert served.is_idle()
