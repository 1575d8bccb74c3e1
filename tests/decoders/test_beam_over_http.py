"""Case c5: streams of beam search never fail in the middle and never send what must be taken back."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from chatserve.config import Config
from chatserve.testing import END_TOKEN_ID, VOCAB_SIZE, RandomLogits, Restricted
from tests.server.harness import HI, Served, events, make_engine, serve_in_thread

LETTERS = tuple(b"abcdefgh ")


def test_three_streams_at_once_twenty_times_equal_the_whole_answers(caplog: pytest.LogCaptureFixture) -> None:
    logits = RandomLogits(VOCAB_SIZE, 11, scale=5.0, end_token_ids=(END_TOKEN_ID,), end_bias=1.5)
    model = Restricted(logits, lambda context: (*LETTERS, END_TOKEN_ID), penalty=60.0)
    engine, runner = make_engine(model)
    with caplog.at_level(logging.WARNING), serve_in_thread(engine, runner, Config(served_model_name="fake")) as served:
        for round_number in range(20):
            bodies: list[dict[str, Any]] = [
                {
                    "messages": [*HI, {"role": "user", "content": f"round {round_number}, stream {number}"}],
                    "decoder": "beam",
                    "decoder_params": {"width": 3},
                    "max_tokens": 16,
                    **({"stop": ["ab", "c"]} if number == 2 else {}),
                }
                for number in range(3)
            ]
            with ThreadPoolExecutor(3) as pool:
                streamed = list(pool.map(lambda body: _stream(served, body), bodies))
            whole = [served.chat(**body).json()["choices"][0] for body in bodies]
            assert streamed == [(choice["message"]["content"], choice["finish_reason"]) for choice in whole]
        assert served.is_idle()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("chatserve")] == []


def _stream(served: Served, body: dict[str, Any]) -> tuple[str, str]:
    """The joined text and the finish reason."""
    response = served.chat(**body, stream=True)
    assert response.status_code == 200
    choices = [choice for chunk in events(response.content) for choice in chunk["choices"]]
    assert all("error" not in chunk for chunk in events(response.content))
    [reason] = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices), reason
