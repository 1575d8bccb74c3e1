"""What a decoder does while it ends, and how it refuses before it begins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chatserve.decoding import Context, Params, Rejected, Sequence, decoder
from chatserve.errors import DecoderError, RequestError
from tests.decoding.company import (
    NEIGHBOURS,
    Panic,
    fate,
    solo,
)
from tests.decoding.harness import assert_empty, make_engine, request, run


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), asyncio.CancelledError(), Panic()], ids=repr)
@pytest.mark.parametrize("is_aborted", [False, True], ids=["closed", "aborted"])
def test_whatever_a_decoder_raises_while_it_is_closed_harms_nobody(error: BaseException, is_aborted: bool) -> None:
    async def rude(ctx: Context, prompt: Sequence, params: Any) -> None:
        try:
            while True:
                prompt.append(await ctx.sample([prompt]))
                ctx.publish(prompt)
        finally:
            raise error

    engine = make_engine(rude)
    heard: list[Any] = []
    neighbour: list[Any] = []
    leaving = engine.submit(request("rude", max_tokens=3, ignore_eos=True), heard.append)
    engine.submit(NEIGHBOURS[0], neighbour.append)
    engine.step()
    if is_aborted:
        engine.abort(leaving)
    while engine.step():
        pass
    assert_empty(engine)
    assert neighbour == solo(0)
    assert is_aborted or heard[-1] is None


def test_rows_may_be_awaited_in_finally() -> None:
    async def tidy(ctx: Context, prompt: Sequence, params: Any) -> None:
        try:
            await ctx.sample([prompt])
            raise ValueError("original")
        finally:
            await ctx.sample([prompt])

    assert "ValueError: original" in str(fate(tidy))


def test_a_swallowed_misuse_is_forgiven() -> None:
    async def careful(ctx: Context, prompt: Sequence, params: Any) -> None:
        for wrong in (lambda: prompt.append(999), lambda: ctx.sample([7]), lambda: prompt.truncate(-1)):  # type: ignore[list-item]
            with pytest.raises(DecoderError):
                wrong()
        prompt.append(await ctx.sample([prompt]))
        ctx.publish(prompt)

    [completion] = run(make_engine(careful), request("careful"))
    assert len(completion.outputs[0].token_ids) == 1


class Width(Params, frozen=True):
    width: int = 2


@decoder("wide", params=Width, sequences=lambda params, n: params.width)
async def wide(ctx: Context, prompt: Sequence, params: Width) -> None:
    if params.width < ctx.n:
        raise Rejected("decoder_params.width", f"is {params.width}, must be at least n = {ctx.n}")
    for choice in range(ctx.n):
        ctx.publish(prompt, choice)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"n": 3}, "decoder_params.width", "is 2, must be at least n = 3"),
        ({"decoder_params": {"wdith": 3}}, "decoder_params", "wdith"),
        ({"decoder_params": {"width": "three"}}, "decoder_params", "`int`, got `str`"),
        ({"decoder_params": {"width": 513}}, None, "513 sequences; allowed are 512"),
        ({"decoder_params": {"width": 400}}, "prompt", "the pool has 256"),
    ],
    ids=str,
)
def test_refusals_name_the_field_and_hold_nothing(fields: dict[str, Any], param: str | None, message: str) -> None:
    engine = make_engine(wide)
    with pytest.raises(RequestError, match=message) as caught:
        engine.submit(request("wide", **fields), lambda news: None)
    assert param is None or str(caught.value.param).startswith(param)
    assert_empty(engine)


def test_a_refusal_after_work_was_done_is_passed_on_and_holds_nothing(caplog: pytest.LogCaptureFixture) -> None:
    @decoder("late")
    async def late(ctx: Context, prompt: Sequence, params: Any) -> None:
        prompt.append(await ctx.sample([prompt]))
        raise Rejected("decoder_params.pattern", "does not fit the answer")

    engine = make_engine(late)
    heard: list[Any] = []
    engine.submit(request("late"), heard.append)
    while engine.step():
        pass
    [error] = heard
    assert isinstance(error, Rejected)
    assert error.param == "decoder_params.pattern"
    assert_empty(engine)
    assert not [record for record in caplog.records if record.levelname == "ERROR"], "nothing of ours has failed"


def test_an_unknown_decoder_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(RequestError, match="'gready' is not known; there are: greedy, parallel, sampling") as caught:
        make_engine().submit(request("gready"), lambda news: None)
    assert (caught.value.param, caught.value.code) == ("decoder", "decoder_not_found")
