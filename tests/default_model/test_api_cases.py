"""Cases of the API whose values hold for the default model; the scripted model has its own in `tests/server`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.server.harness import HI, Served, events, eventually, serve_default_model

pytestmark = pytest.mark.timeout(600)  # a fresh machine compiles the kernels and fetches the model first

PROMPT_LEN = 31  # of HI, with the system turn that the template adds


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve_default_model() as running:
        yield running


def test_usage_comes_once_and_only_when_asked(served: Served) -> None:  # case b1
    *chunks, last = events(served.chat(max_tokens=4, stream=True, stream_options={"include_usage": True}).content)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (PROMPT_LEN, 4)
    fields: list[dict[str, Any]] = [{"stream_options": {}}, {}]
    for given in fields:
        chunks = events(served.chat(max_tokens=4, stream=True, **given).content)
        assert not any("usage" in chunk for chunk in chunks)


def test_max_tokens(served: Served) -> None:  # case b3
    def count(response: Any) -> tuple[int, str]:
        answer = response.json()
        return answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]

    assert count(served.complete(prompt="test", temperature=0, max_tokens=None)) == (16, "length")
    assert count(served.chat(temperature=0, max_tokens=None))[1] == "stop", "there is room up to the context"
    for wrong in (0, -1, "5", 1.5):
        for response in (served.complete(max_tokens=wrong), served.chat(max_tokens=wrong)):
            assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")
    assert count(served.complete(prompt="test", max_tokens=1)) == (1, "length")
    assert count(served.chat(max_tokens=1)) == (1, "length")


def test_parts_of_text(served: Served) -> None:  # case b5
    def answer(content: Any) -> tuple[int, str]:
        messages = [{"role": "user", "content": content}]
        body = served.chat(messages=messages, temperature=0, max_tokens=8).json()
        return body["usage"]["prompt_tokens"], body["choices"][0]["message"]["content"]

    plain = answer("Hi")
    assert plain[0] == PROMPT_LEN
    assert answer([{"type": "text", "text": "Hi"}]) == plain
    assert answer([{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]) == plain
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    assert served.chat(messages=[image]).status_code == 400


def test_logit_bias(served: Served) -> None:  # case b7
    with served.http.stream(
        "POST", "/v1/chat/completions", json={"messages": HI, "max_tokens": 12, "stream": True}
    ) as s:
        wrong: list[dict[str, Any]] = [{"191222": -100}, {"49152": 1}, {"AI": -100}, {"5": "x"}]
        for bias in wrong:
            response = served.complete(logit_bias=bias)
            assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
        s.read()
        assert events(s.content)[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    answer = served.complete(prompt="test", temperature=0, max_tokens=3, logit_bias={"38634": 100}).json()
    assert answer["choices"][0]["text"] == "ParisParisParis"


def test_seeded_choices(served: Served) -> None:  # case b9
    def texts() -> list[str]:
        body = served.complete(prompt="Once", n=4, seed=123, temperature=1, max_tokens=12).json()
        return [choice["text"] for choice in body["choices"]]

    alone = texts()
    assert len(set(alone)) > 1
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(served.complete, prompt="The", max_tokens=40, ignore_eos=True) for _ in range(3)]
        assert eventually(lambda: served.stat("requests_running") > 0)
        assert texts() == alone
        assert all(other.result().status_code == 200 for other in others)


def test_logprobs_alone(served: Served) -> None:  # case b11
    asked = {"logprobs": True, "max_tokens": 3, "temperature": 0}
    [choice] = served.chat(**asked).json()["choices"]
    items = choice["logprobs"]["content"]
    assert len(items) == 3
    assert all(item["logprob"] <= 0 and item["top_logprobs"] == [] and item["token"] for item in items)
    assert bytes(byte for item in items for byte in item["bytes"]).decode() == choice["message"]["content"]
    chunks = events(served.chat(**asked, stream=True).content)
    streamed = [chunk["choices"][0]["logprobs"] or {"content": []} for chunk in chunks]
    assert [item for part in streamed for item in part["content"]] == items
