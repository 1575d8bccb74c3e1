"""The default model as it is served, through the official client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from chatserve.config import Config
from chatserve.engine import AsyncEngine
from chatserve.engine.building import build_engine
from tests.server.harness import Served, serve_in_thread

pytestmark = pytest.mark.timeout(600)  # a fresh machine compiles the kernels and fetches the model first


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    config = Config(kv_memory=0.3)
    loaded, engine = build_engine(config)
    runner = cast(Any, loaded.runner)  # the harness keeps it for tests of the fake model only
    with serve_in_thread(AsyncEngine(engine, loaded.chat_template), runner, config) as running:
        yield running


def test_the_capital_of_france_streams_in(served: Served) -> None:
    stream = served.openai.chat.completions.create(
        model="smollm2-135m-instruct",
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        stream=True,
    )
    chunks = list(stream)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(pieces) == "The capital of France is Paris."
    assert sum(map(bool, pieces)) >= 5
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert served.is_idle()
