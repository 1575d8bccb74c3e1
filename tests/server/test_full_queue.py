"""A queue without a place: requests are told so, before any work is done for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.server.harness import HI, Served, eventually

Start = Callable[..., Served]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LONG = {"prompt": "y" * 100, "max_tokens": 20, "ignore_eos": True}


@pytest.fixture
def occupied(start_server: Start) -> Iterator[Callable[[int], Served]]:
    """A server with places for so many waiting requests: one request fills the pool, another one waits."""
    with ExitStack() as stack:

        def occupy(max_queue: int) -> Served:
            # 8 blocks of 16 hold one request of 120 tokens.
            served = start_server("x" * 4000, delay=0.01, num_blocks=8, max_queue=max_queue)
            stack.enter_context(served.connect(COMPLETIONS, LONG))
            assert eventually(lambda: served.stat("requests_running") == 1)
            stack.enter_context(served.connect(COMPLETIONS, LONG))
            assert eventually(lambda: served.stat("requests_waiting") == 1)
            return served

        yield occupy


def test_a_full_queue(occupied: Callable[[int], Served]) -> None:
    response = occupied(1).complete(**LONG)
    assert response.status_code == 429
    assert response.json()["error"]["code"] == "queue_full"
    assert int(response.headers["retry-after"]) >= 1
    assert "x-should-retry" not in response.headers


@pytest.mark.parametrize(
    ("path", "fields", "status", "code"),
    [
        (COMPLETIONS, {"prompt": ["x"] * 3}, 400, "invalid_value"),
        (COMPLETIONS, {"prompt": ["x"] * 2}, 429, "queue_full"),
        (COMPLETIONS, {"prompt": "x"}, 200, None),
        (CHAT, {"messages": HI}, 200, None),
    ],
)
def test_what_the_queue_has_no_place_for_is_not_even_tokenised(
    occupied: Callable[[int], Served], path: str, fields: dict[str, Any], status: int, code: str | None
) -> None:
    served = occupied(2)
    with counted_encodings(served) as texts:
        response = served.http.post(path, json={**fields, "max_tokens": 1})
    assert response.status_code == status
    assert bool(texts) == (status == 200)
    assert code is None or response.json()["error"]["code"] == code


@contextmanager
def counted_encodings(served: Served) -> Iterator[list[str]]:
    """The texts that are tokenised meanwhile."""
    texts: list[str] = []
    vocabulary = served.engine.vocabulary
    encode = vocabulary.encode

    def noted(text: str, **options: bool) -> list[int]:
        texts.append(text)
        return encode(text, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "encode", noted)
        yield texts
