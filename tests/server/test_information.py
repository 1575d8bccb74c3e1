"""Models, decoders, health, tokenising."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chatserve.testing import END_TOKEN_ID
from tests.server.harness import HI, Served

Start = Callable[..., Served]


def test_models_through_the_client(served: Served) -> None:
    models = served.openai.models.list().data
    assert [model.id for model in models] == ["fake"]
    one = served.openai.models.retrieve("fake")
    assert one == models[0]
    assert served.http.get("/v1/models").json()["data"][0]["max_model_len"] == 4096


def test_ids_of_models_may_contain_slashes(served: Served) -> None:
    response = served.http.get("/v1/models/some/model")
    assert response.status_code == 404
    assert "some/model" in response.json()["error"]["message"]


def test_decoders(served: Served) -> None:
    body = served.http.get("/v1/decoders").json()
    assert body["object"] == "list"
    by_id = {decoder["id"]: decoder for decoder in body["data"]}
    assert {"greedy", "sampling", "parallel"} <= by_id.keys()
    fields = {"id", "name", "description", "version", "distribution", "api", "parameters", "state", "reason"}
    assert all(set(decoder) == fields for decoder in by_id.values())
    assert by_id["greedy"]["state"] == "ready"


def test_health_follows_the_engine(start_server: Start) -> None:
    served = start_server()
    ready = served.http.get("/health")
    assert ready.status_code == 200
    assert ready.json()["status"] == "ready"
    assert ready.json()["stats"]["blocks_used"] == 0
    served.engine.status = "dead"
    dead = served.http.get("/health")
    assert dead.status_code == 503
    assert dead.json()["status"] == "dead"


def test_tokenize(served: Served) -> None:
    prompt = served.http.post("/tokenize", json={"prompt": "é"}).json()
    assert prompt == {"count": 2, "max_model_len": 4096, "tokens": [0xC3, 0xA9]}
    chat = served.http.post("/tokenize", json={"messages": HI}).json()["tokens"]
    assert chat == [257, *b"user\nHi", END_TOKEN_ID, 257, *b"assistant\n"]
    without = served.http.post("/tokenize", json={"messages": HI, "add_generation_prompt": False}).json()["tokens"]
    assert without == [257, *b"user\nHi", END_TOKEN_ID]
    assert served.http.post("/tokenize", json={"prompt": ""}).json()["tokens"] == []


@pytest.mark.parametrize("body", [{}, {"prompt": "x", "messages": HI}])
def test_tokenize_wants_exactly_one_input(served: Served, body: dict[str, object]) -> None:
    assert served.http.post("/tokenize", json=body).status_code == 400


def test_detokenize(served: Served) -> None:
    assert served.http.post("/detokenize", json={"tokens": [0xC3, 0xA9, END_TOKEN_ID]}).json() == {"prompt": "é"}
    assert served.http.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}
    for tokens, param in (([-1], "tokens[0]"), ([260], "tokens"), (["a"], "tokens[0]"), ([10**20], "tokens[0]")):
        response = served.http.post("/detokenize", json={"tokens": tokens})
        assert response.status_code == 400
        assert response.json()["error"]["param"] in (param, "tokens")
