"""What blows up in the middle of an answer ends that answer with an error, and no other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from chatserve.decoding import Context, Sequence, decoder
from chatserve.models.batch import Float32Array, Int32Array
from chatserve.testing import VOCAB_SIZE, Faulty
from chatserve.text import Detokenizer
from tests.server.harness import Served, events, eventually, script, text_of

Start = Callable[..., Served]
HEALTHY = "x" * 40
FAULTY_TOKEN = ord("#")


class TwoAnswers:
    """One for prompts that begin with "b", which holds a special character, another for all others."""

    vocab_size = VOCAB_SIZE

    def __init__(self) -> None:
        self._faulty, self._healthy = script("ab#cd"), script(HEALTHY)

    def __call__(self, context: Int32Array) -> Float32Array:
        return (self._faulty if context[0] == ord("b") else self._healthy)(context)


@decoder("breaking")
async def breaking(ctx: Context, prompt: Sequence, params: Any) -> None:
    """Divides by zero at the special character."""
    while not prompt.ended:
        [sample] = await ctx.sample([prompt])
        prompt.append(sample)
        ctx.publish(prompt)
        _ = 1 / (prompt.tokens[-1] - FAULTY_TOKEN)


def break_detokenizer(patch: pytest.MonkeyPatch) -> None:
    right = Detokenizer.next_piece

    def next_piece(self: Detokenizer, token_id: int) -> bytes:
        if token_id == FAULTY_TOKEN:
            raise RuntimeError("the table of tokens is broken")
        return right(self, token_id)

    patch.setattr(Detokenizer, "next_piece", next_piece)


@pytest.mark.parametrize(
    ("kind", "told"), [("decoder", "ZeroDivisionError"), ("detokenizer", "the table of tokens"), ("NaN", "NaN")]
)
@pytest.mark.parametrize("is_stream", [True, False])
def test_one_answer_ends_and_the_others_go_on(
    start_server: Start, monkeypatch: pytest.MonkeyPatch, kind: str, told: str, is_stream: bool
) -> None:
    logits: Any = TwoAnswers()
    if kind == "NaN":
        logits = Faulty(logits, lambda context: context[-1] == FAULTY_TOKEN)
    elif kind == "detokenizer":
        break_detokenizer(monkeypatch)
    served = start_server(logits, delay=0.01, extra_decoders=[breaking])
    chosen = {"decoder": "breaking"} if kind == "decoder" else {}
    with ThreadPoolExecutor(1) as pool:
        neighbour = pool.submit(served.complete, prompt="good", max_tokens=60, stream=True)
        assert eventually(lambda: served.stat("requests_running") == 1)
        response = served.complete(prompt="bad", max_tokens=60, stream=is_stream, **chosen)
        assert text_of(events(neighbour.result().content)) == HEALTHY
    if is_stream:
        *chunks, last = events(response.content)
        assert text_of(chunks).startswith("ab")
        assert not any(choice["finish_reason"] for chunk in chunks for choice in chunk["choices"])
        error = last["error"]
    else:
        assert response.status_code == 500
        error = response.json()["error"]
    assert (set(error), error["type"]) == ({"message", "type", "param", "code"}, "server_error")
    assert told in error["message"]
    assert served.is_idle()
    assert served.complete(prompt="good", max_tokens=60).json()["choices"][0]["text"] == HEALTHY
