"""Named prefixes over HTTP: registering, answering behind one, removing, refusals."""

from __future__ import annotations

import pytest

from tests.server.harness import Served

EXAMPLES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def test_a_prefix_lives_from_registration_to_removal(served: Served) -> None:
    created = served.http.post("/v1/prefixes", json={"name": "story", "text": "Once upon a time"})
    assert created.json() == {"id": "story", "object": "prefix", "tokens": 16}
    assert served.http.get("/v1/prefixes").json()["data"] == [created.json()]
    assert served.stat("blocks_pinned") > 0
    assert served.http.delete("/v1/prefixes/story").json()["deleted"] is True
    assert served.http.get("/v1/prefixes").json()["data"] == []
    assert served.is_idle()
    gone = served.http.delete("/v1/prefixes/story")
    assert gone.status_code == 404
    assert gone.json()["error"]["code"] == "prefix_not_found"


def test_a_completion_behind_a_prefix_is_that_of_the_joined_text(served: Served) -> None:
    served.http.post("/v1/prefixes", json={"name": "p", "text": "Once upon "})
    fields = {"max_tokens": 12, "temperature": 0}
    behind = {"decoder": "shared-prefix", "decoder_params": {"prefix": "p"}}
    shared = served.complete(prompt="a time", **fields, **behind).json()
    joined = served.complete(prompt="Once upon a time", **fields).json()
    assert shared["choices"][0]["text"] == joined["choices"][0]["text"]
    served.http.delete("/v1/prefixes/p")


def test_a_chat_behind_messages_continues_them(served: Served) -> None:
    served.http.post("/v1/prefixes", json={"name": "m", "messages": EXAMPLES})
    question = [{"role": "user", "content": "And now?"}]
    fields = {"max_tokens": 12, "temperature": 0}
    behind = {"decoder": "shared-prefix", "decoder_params": {"prefix": "m"}}
    shared = served.chat(messages=question, **fields, **behind).json()
    joined = served.chat(messages=[*EXAMPLES, *question], **fields).json()
    assert shared["choices"][0]["message"] == joined["choices"][0]["message"]
    served.http.delete("/v1/prefixes/m")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"name": "a b", "text": "x"}, "name"),
        ({"name": "a"}, "text"),
        ({"name": "a", "text": "x", "tokens": [1]}, "text"),
        ({"name": "a", "text": ""}, "text"),
        ({"name": "a", "tokens": [-1]}, "tokens[0]"),
        ({"name": "a", "tokens": ["x"]}, "tokens[0]"),
        ({"text": "x"}, "name"),
    ],
    ids=str,
)
def test_bad_prefixes_are_refused(served: Served, body: dict[str, object], param: str) -> None:
    response = served.http.post("/v1/prefixes", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_an_unknown_prefix_is_refused(served: Served) -> None:
    response = served.complete(decoder="shared-prefix", decoder_params={"prefix": "nobody"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "decoder_params.prefix"
    response = served.complete(decoder="shared-prefix")
    assert response.status_code == 400
    assert "prefix" in response.json()["error"]["message"]
