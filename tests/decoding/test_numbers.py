"""Lengths and numbers that a decoder gives: checked at the call, taken in any type, bounded by the context."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from chatserve.decoding import Context, Sequence
from chatserve.errors import DecoderError
from tests.decoding.company import (
    Misuse,
    fate,
)
from tests.decoding.harness import make_engine, request, run


@pytest.mark.parametrize(
    "rows",
    [lambda c, s, draft: c.score([s], [draft]), lambda c, s, draft: c.verify([s], [draft])],
    ids=["score", "verify"],
)
@pytest.mark.parametrize("excess", [1, 2, 100])
def test_nothing_runs_behind_the_context(rows: Callable[[Context, Sequence, list[int]], Any], excess: int) -> None:
    async def far(ctx: Context, prompt: Sequence, params: Any) -> None:
        room = 64 - len(prompt)
        [answered] = await rows(ctx, prompt, [65] * room)
        assert 1 <= len(answered) <= room + 1
        await rows(ctx, prompt.fork(), [65] * (room + excess))

    error = fate(far, {"max_model_len": 64})
    assert re.search(rf"5 tokens and {59 + excess} behind them exceed the context of 64", str(error))


@pytest.mark.parametrize("rows", ["score", "verify"])
def test_a_sequence_that_grows_before_its_rows_are_awaited_stays_in_the_context(rows: str) -> None:
    async def late(ctx: Context, prompt: Sequence, params: Any) -> None:
        wanted = getattr(ctx, rows)([prompt], [[65] * (64 - len(prompt))])
        prompt.append([65, 65, 65])
        await wanted
        ctx.publish(prompt)

    assert isinstance(fate(late, {"max_model_len": 64}), DecoderError)


REFUSED: list[tuple[str, Misuse]] = [
    *(
        (f"{name} is {value!r}", lambda ctx, seq, name=name, value=value: ctx.sample([seq], **{name: value}))
        for name, values in {
            "temperature": ("hot", -1, -1e-9, float("nan"), float("inf"), True, 1j, [1.0]),
            "top_k": (-5, 2.5, "3", float("nan")),
            "top_p": (0, -3.0, 1.0001, float("nan"), float("inf"), "0.5"),
            "min_p": (-0.1, 7, float("nan"), b"0"),
        }.items()
        for value in values
    ),
    *(
        (f"k is {value!r}", lambda ctx, seq, value=value: ctx.topk([seq], value))
        for value in (2.5, "2", None, -1, float("nan"))
    ),
    *(
        (f"last is {value!r}", lambda ctx, seq, value=value: ctx.logits([seq], last=value))
        for value in (1.5, "1", None, -1, float("inf"))
    ),
]


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message for message, _ in REFUSED])
def test_numbers_are_checked_at_the_call(message: str, call: Misuse) -> None:
    async def asks(ctx: Context, prompt: Sequence, params: Any) -> None:
        with pytest.raises(DecoderError, match=re.escape(message)):
            call(ctx, prompt)
        ctx.publish(prompt)

    run(make_engine(asks), request("asks"))


ACCEPTED: dict[str, tuple[Any, ...]] = {
    "temperature": (0, 0.0, 3, np.float32(0.5), np.int64(1), 1e300),
    "top_k": (0, 1, 10**6, 2**70, np.int32(4)),
    "top_p": (1, 1e-9, np.float64(0.5)),
    "min_p": (0, 1, np.float32(0.25)),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in ACCEPTED for value in ACCEPTED[name]])
def test_numbers_of_any_type_are_taken(name: str, value: Any) -> None:
    async def asks(ctx: Context, prompt: Sequence, params: Any) -> None:
        prompt.append(await ctx.sample([prompt], **{name: value}))
        prompt.append(np.int64(7))  # type: ignore[arg-type]
        assert {type(token) for token in prompt.tokens} == {int}
        ctx.publish(prompt)

    [completion] = run(make_engine(asks), request("asks"))
    assert completion.outputs[0].token_ids[1:] == [7]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("top_k", -(10**400), id="negative top_k"),
        *(pytest.param(name, 10**400, id=name) for name in ("temperature", "top_p", "min_p")),
    ],
)
def test_a_number_beyond_all_bounds_ends_its_own_request_only(name: str, value: int) -> None:
    async def asks(ctx: Context, prompt: Sequence, params: Any) -> None:
        await ctx.sample([prompt], **{name: value})
        ctx.publish(prompt)

    assert isinstance(fate(asks), DecoderError)


TOKENS: dict[str, Misuse] = {
    "verify": lambda ctx, tokens: ctx.verify([ctx.sequence([1])], [tokens]),
    "score": lambda ctx, tokens: ctx.score([ctx.sequence([1])], [tokens]),
    "sequence": lambda ctx, tokens: ctx.sequence(tokens),
}


@pytest.mark.parametrize("token", [pytest.param(1.5), pytest.param("7"), None, float("nan")], ids=repr)
@pytest.mark.parametrize("use", TOKENS)
def test_tokens_that_are_no_integers_are_refused_everywhere(use: str, token: Any) -> None:
    async def asks(ctx: Context, prompt: Sequence, params: Any) -> None:
        with pytest.raises((DecoderError, TypeError, ValueError)):
            TOKENS[use](ctx, [65, token])
        ctx.publish(prompt)

    run(make_engine(asks), request("asks"))
