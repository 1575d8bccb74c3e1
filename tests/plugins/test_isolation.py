"""What a plugin does outside its awaits, and what it raises, reaches its own request only."""

from __future__ import annotations

import time
from typing import Any

import pytest

from chatserve.decoding import Context, Decoder, Params, Sequence, complete, decoder
from chatserve.engine import AsyncEngine, Delta
from chatserve.errors import ChatserveError, DecoderError, GenerationError
from chatserve.testing import VOCAB_SIZE, RandomLogits, TrialEngine
from tests.decoders.built_in import request

LIMIT = 0.1


@decoder("plain")
async def plain(ctx: Context, prompt: Sequence, params: Params) -> None:
    await complete(ctx, [prompt], publish=True)


@decoder("interrupts-at-once")
async def interrupts_at_once(ctx: Context, prompt: Sequence, params: Params) -> None:
    raise KeyboardInterrupt


@decoder("interrupts-later")
async def interrupts_later(ctx: Context, prompt: Sequence, params: Params) -> None:
    await ctx.sample([prompt])
    raise KeyboardInterrupt


def _count_for_ever(params: Params, n: int) -> int:
    while True:
        pass


class EndlessParams(Params, frozen=True):
    def __post_init__(self) -> None:
        while True:
            pass


endless_count = decoder("endless-count", sequences=_count_for_ever)(plain.function)
endless_params = decoder("endless-params", params=EndlessParams)(plain.function)


def think() -> None:
    time.sleep(0.02)


@decoder("thinker")
async def thinker(ctx: Context, prompt: Sequence, params: Params) -> None:
    """Takes 20 ms for each token."""
    while not prompt.ended:
        [sample] = await ctx.sample([prompt])
        think()
        prompt.append(sample)
        ctx.publish(prompt)


def make_engine(*decoders: Decoder) -> TrialEngine:
    return TrialEngine([plain, *decoders], RandomLogits(VOCAB_SIZE), decoder_timeout=LIMIT)


ASKED: dict[str, Any] = {"seed": 1, "max_tokens": 6, "ignore_eos": True}


async def collect(engine: AsyncEngine, name: str) -> list[Delta]:
    return [delta async for delta in await engine.submit(request(name, **ASKED))]


@pytest.mark.parametrize("tested", [interrupts_at_once, interrupts_later], ids=lambda tested: tested.name)
async def test_a_keyboard_interrupt_of_a_decoders_own_does_not_end_the_server(tested: Decoder) -> None:
    inner = make_engine(tested)
    engine = AsyncEngine(inner)
    neighbour = await engine.submit(request("plain", **ASKED))
    with pytest.raises(GenerationError, match="the decoder raised KeyboardInterrupt"):
        await collect(engine, tested.name)
    with_company = [delta async for delta in neighbour]
    assert engine.status == "ready"
    assert with_company == await collect(engine, "plain")
    inner.check_empty()
    await engine.shutdown(1)


def test_ctrl_c_where_nobody_else_handles_it_goes_up() -> None:
    """Python's own handler is in place here, so the decoder cannot be told from the user."""
    engine = make_engine(interrupts_later)
    engine.start(request("interrupts-later", **ASKED))
    with pytest.raises(KeyboardInterrupt):
        engine.step()


@pytest.mark.parametrize("tested", [endless_count, endless_params], ids=lambda tested: tested.name)
def test_what_is_called_before_the_decoder_starts_is_interrupted_too(tested: Decoder) -> None:
    engine = make_engine(tested)
    neighbour = engine.start(request("plain", **ASKED))
    engine.step()
    begin = time.monotonic()
    with pytest.raises(DecoderError, match="interrupted: it ran for 0.1 s without yielding"):
        engine.start(request(tested.name, **ASKED))
    assert time.monotonic() - begin < 20 * LIMIT
    while engine.step():
        pass
    assert neighbour.answers() == make_engine().run(request("plain", **ASKED))[0].answers()
    engine.check_empty()


def test_the_time_spent_in_each_decoder_is_counted() -> None:
    engine = make_engine(thinker)
    engine.run(request("thinker", **ASKED), request("plain", **ASKED))
    assert engine.decoder_seconds.keys() == {"thinker", "plain"}
    assert engine.decoder_seconds["thinker"] >= 6 * 0.02
    assert 0 < engine.decoder_seconds["plain"] < engine.decoder_seconds["thinker"]


def test_the_time_of_a_decoder_that_fails_is_counted() -> None:
    @decoder("hangs")
    async def hangs(ctx: Context, prompt: Sequence, params: Params) -> None:
        while True:
            pass

    engine = make_engine(hangs)
    with pytest.raises(ChatserveError, match="interrupted"):
        engine.start(request("hangs", **ASKED))
    assert engine.decoder_seconds["hangs"] >= LIMIT
