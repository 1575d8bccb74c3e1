"""The default model as it is served, through the official client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.harness import Served, serve_default_model

pytestmark = pytest.mark.timeout(600)  # a fresh machine compiles the kernels and fetches the model first


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve_default_model() as running:
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
