"""A decoder that misuses the API ends its own request, with a clear text, and harms nobody."""

from __future__ import annotations

import asyncio
import functools
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from chatserve.decoding import Context, Params, Rejected, Sample, Sequence, decoder
from chatserve.engine.async_engine import AsyncEngine
from chatserve.errors import ChatserveError, DecoderError, GenerationError, RequestError
from tests.decoding.harness import Body, assert_empty, make_engine, request, run

NEIGHBOURS = [request("sampling", max_tokens=9, seed=8), request("parallel", range(30), n=2, max_tokens=7, seed=9)]


def fate(body: Body, **fields: Any) -> ChatserveError:
    """Run the decoder among neighbours, who must finish as if they were alone; the error that it ended with."""
    engine = make_engine(body)
    neighbours: list[list[Any]] = [[] for _ in NEIGHBOURS]
    for neighbour, news in zip(NEIGHBOURS, neighbours, strict=True):
        engine.submit(neighbour, news.append)
    engine.step()
    heard: list[Any] = []
    try:
        engine.submit(request(body.__name__, **{"max_tokens": 4, **fields}), heard.append)
    except ChatserveError as refusal:
        heard.append(refusal)
        engine.check_integrity()
    while engine.step():
        pass
    assert_empty(engine)
    for index, news in enumerate(neighbours):
        assert news == solo(index)
    *_, error = heard
    assert isinstance(error, ChatserveError)
    assert sum(isinstance(one, ChatserveError) for one in heard) == 1
    return error


@functools.cache
def solo(index: int) -> list[Any]:
    """What a neighbour hears that is alone."""
    neighbour = NEIGHBOURS[index]
    engine = make_engine()
    heard: list[Any] = []
    engine.submit(neighbour, heard.append)
    while engine.step():
        pass
    return heard


Misuse: TypeAlias = Callable[[Any, Any], Any]


def freed(prompt: Sequence) -> Sequence:
    child = prompt.fork()
    child.free()
    return child


def ended(ctx: Context, prompt: Sequence) -> Sequence:
    child = prompt.fork()
    child.append(ctx.end_tokens[0])
    return child


IMMEDIATE: list[tuple[str, str, Misuse]] = [
    ("exception", "the decoder raised ZeroDivisionError: division by zero", lambda ctx, seq: 1 / 0),
    ("free twice", "cannot free a freed sequence", lambda ctx, seq: freed(seq).free()),
    ("fork a freed one", "cannot fork a freed sequence", lambda ctx, seq: freed(seq).fork()),
    ("append to a freed one", "cannot append to a freed", lambda ctx, seq: freed(seq).append(1)),
    ("truncate a freed one", "cannot truncate a freed", lambda ctx, seq: freed(seq).truncate(5)),
    ("append behind the end", r"has ended \(stop\)", lambda ctx, seq: ended(ctx, seq).append(1)),
    ("append an unknown token", "token 260 is not in the vocabulary", lambda ctx, seq: seq.append(260)),
    ("append a negative token", "token -1 is not in", lambda ctx, seq: seq.append(Sample(-1, -0.5))),
    ("append text", "raised TypeError", lambda ctx, seq: seq.append("text")),
    ("truncate the prompt", "truncate to 2: allowed are 5 to", lambda ctx, seq: seq.truncate(2)),
    ("truncate beyond", "truncate to 99: allowed are 5 to", lambda ctx, seq: seq.truncate(99)),
    ("publish an unknown choice", "choice 1: the request has choices 0 to 0", lambda c, s: c.publish(s, 1)),
    ("finish an unknown choice", "choice -1: the request has", lambda ctx, seq: ctx.finish(-1)),
    ("finish for no reason", "reason is 'bored'", lambda ctx, seq: ctx.finish(0, "bored")),
    ("sequence of nothing", "needs at least one token", lambda ctx, seq: ctx.sequence([])),
    ("sequence of unknown tokens", "not in the vocabulary", lambda ctx, seq: ctx.sequence([1, 999])),
    ("sequence too long", "leave no room in the context of 8192", lambda ctx, seq: ctx.sequence([1] * 8192)),
    ("draw from a short row", r"logits have shape \(3,\)", lambda ctx, seq: ctx.draw(seq, np.zeros(3))),
    ("draw from NaN", "logits hold NaN", lambda c, s: c.draw(s, np.full(260, np.nan))),
    ("forgot await", "forgot `await`", lambda ctx, seq: [*ctx.sample([seq])]),
    ("append an unawaited draw", "forgot `await`", lambda ctx, seq: seq.append(ctx.sample([seq]))),
]

AWAITED: list[tuple[str, str, Misuse]] = [
    ("one sequence instead of a list", r"as a list, such as \[seq\]", lambda ctx, seq: ctx.sample(seq)),
    ("a freed sequence", "a named sequence was freed", lambda ctx, seq: ctx.sample([freed(seq)])),
    ("not a sequence", "must be Sequences of this request", lambda ctx, seq: ctx.sample([1])),
    ("verify twice", "verify: a sequence is named twice", lambda c, s: c.verify([s, s], [[], []])),
    ("verify with too few drafts", "1 token lists for 2 sequences", lambda c, s: c.verify([s, s.fork()], [[]])),
    ("verify an unknown token", "not in the vocabulary", lambda c, s: c.verify([s], [[300]])),
    ("score nothing", "a continuation is empty", lambda ctx, seq: ctx.score([seq], [[]])),
    ("score another stage", "stage is 'warped'", lambda c, s: c.score([s], [[1]], "warped")),
    ("logits of a stage", "stage is 'cooked'", lambda c, s: c.logits([s], stage="cooked")),
    ("logits of nothing", "last is 0", lambda ctx, seq: ctx.logits([seq], last=0)),
    ("logits of too much", "last is 99, allowed are 1 to", lambda ctx, seq: ctx.logits([seq], last=99)),
    ("none best", "k is 0", lambda ctx, seq: ctx.topk([seq], 0)),
    ("sleep", "awaited NoneType, which is not of its context", lambda ctx, seq: asyncio.sleep(0)),
    ("gather a sleep", "awaited NoneType", lambda c, s: c.gather(c.sample([s]), asyncio.sleep(0))),
]


async def twice(ctx: Context, prompt: Sequence, params: Any) -> None:
    want = ctx.sample([prompt])
    await want
    await want


async def future(ctx: Context, prompt: Sequence, params: Any) -> None:
    loop = asyncio.new_event_loop()
    try:
        await loop.create_future()
    finally:
        loop.close()


async def bomb(ctx: Context, prompt: Sequence, params: Any) -> None:
    while True:
        prompt.fork()


async def rewrite(ctx: Context, prompt: Sequence, params: Any) -> None:
    first = ctx.sequence([1], parent=prompt)
    second = first.fork()
    if not prompt.num_generated:
        first.append(64)
        ctx.publish(first)
    second.append(63)
    ctx.publish(second)


async def afterthought(ctx: Context, prompt: Sequence, params: Any) -> None:
    other = prompt.fork()
    ctx.publish(prompt)
    ctx.finish()
    other.append(7)
    ctx.publish(other)


BODIES: list[tuple[str, str, Body]] = [
    ("await twice", "this was awaited before", twice),
    ("a foreign future", "awaited Future", future),
    ("a fork bomb", "more than max_sequences = 512 live sequences; free some", bomb),
    ("a rewrite", r"has published token \d+ at position 0; it cannot become", rewrite),
    ("more behind the end", "choice 0 has finished; nothing can be published behind its end", afterthought),
]


def immediate(misused: Misuse) -> Body:
    async def body(ctx: Context, prompt: Sequence, params: Any) -> None:
        misused(ctx, prompt)

    return body


def awaited(made: Misuse) -> Body:
    async def body(ctx: Context, prompt: Sequence, params: Any) -> None:
        await made(ctx, prompt)

    return body


def after(num_awaits: int, body: Body) -> Body:
    """The misuse behind some awaits that are in order."""

    async def bad(ctx: Context, prompt: Sequence, params: Any) -> None:
        for _ in range(num_awaits):
            prompt.append(await ctx.sample([prompt]))
            ctx.publish(prompt)
        await body(ctx, prompt, params)

    return bad


CASES = [
    *((name, message, immediate(misused)) for name, message, misused in IMMEDIATE),
    *((name, message, awaited(made)) for name, message, made in AWAITED),
    *BODIES,
]


@pytest.mark.parametrize("num_awaits", [0, 2])
@pytest.mark.parametrize(("message", "body"), [pytest.param(*case, id=name) for name, *case in CASES])
def test_misuse_ends_its_own_request_only(message: str, body: Body, num_awaits: int) -> None:
    error = fate(after(num_awaits, body))
    assert isinstance(error, DecoderError)
    assert error.code == "decoder_error"
    assert re.search(message, error.message), error.message


@pytest.mark.parametrize("use", ["publish", "sample", "parent"])
def test_a_sequence_of_another_request_is_refused(use: str) -> None:
    owned: list[Sequence] = []

    async def owner(ctx: Context, prompt: Sequence, params: Any) -> None:
        owned.append(prompt)
        await ctx.sample([prompt])
        ctx.publish(prompt)

    async def thief(ctx: Context, prompt: Sequence, params: Any) -> None:
        if use == "publish":
            ctx.publish(owned[0])
        elif use == "sample":
            await ctx.sample([prompt, owned[0]])
        else:
            ctx.sequence([1], parent=owned[0])

    engine = make_engine(owner, thief)
    heard: list[Any] = []
    engine.submit(request("owner"), heard.append)
    with pytest.raises(DecoderError, match="belongs to another request|must be Sequences of this request"):
        engine.submit(request("thief"), lambda news: None)
    while engine.step():
        pass
    assert heard[-1] is None
    assert_empty(engine)


def test_a_decoder_that_publishes_nothing_is_told_which_choice() -> None:
    async def silent(ctx: Context, prompt: Sequence, params: Any) -> None:
        await ctx.sample([prompt])
        ctx.publish(prompt, 0)

    assert "returned without publishing choice 1" in str(fate(silent, n=2))


def test_a_forgotten_append_ends_at_the_row_budget() -> None:
    async def forgetful(ctx: Context, prompt: Sequence, params: Any) -> None:
        while not prompt.ended:
            await ctx.sample([prompt])
            ctx.publish(prompt)

    assert "rows without coming to an end" in str(fate(forgetful, max_tokens=1))


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


# refusals before the first byte


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


def test_an_unknown_decoder_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(RequestError, match="'gready' is not known; there are: greedy, parallel, sampling") as caught:
        make_engine().submit(request("gready"), lambda news: None)
    assert (caught.value.param, caught.value.code) == ("decoder", "decoder_not_found")


# under asyncio


async def _timeout(ctx: Context, prompt: Sequence, params: Any) -> None:
    async with asyncio.timeout(0.001):
        while True:
            await ctx.sample([prompt])


async def _future(ctx: Context, prompt: Sequence, params: Any) -> None:
    await asyncio.get_running_loop().create_future()


async def _sleep(ctx: Context, prompt: Sequence, params: Any) -> None:
    await ctx.sample([prompt])
    await asyncio.sleep(0.001)


@pytest.mark.parametrize("body", [_timeout, _future, _sleep], ids=lambda body: body.__name__)
async def test_asyncio_inside_a_decoder_does_not_reach_the_engine(body: Body) -> None:
    engine = AsyncEngine(make_engine(body))
    neighbour = await engine.submit(NEIGHBOURS[0])
    with pytest.raises(GenerationError, match="await|RuntimeError"):
        async for _ in await engine.submit(request(body.__name__)):
            pass
    assert [*[delta async for delta in neighbour], None] == solo(0)
    assert engine.status == "ready"
    assert engine.stats()["blocks_used"] == 0
    again = await engine.submit(NEIGHBOURS[0])
    assert [*[delta async for delta in again], None] == solo(0)
    await engine.shutdown(1)


_STUBBORN = """
import gc, sys, warnings
from tests.decoding.harness import make_engine, request, assert_empty

async def sample(ctx, prompt, params):
    while True:
        try:
            await ctx.sample([prompt])
        except BaseException:
            pass

async def gather(ctx, prompt, params):
    while True:
        try:
            await ctx.gather(ctx.sample([prompt]), ctx.topk([prompt], 2), sample(ctx, prompt, params))
        except BaseException:
            pass

async def everything(ctx, prompt, params):
    while True:
        try:
            await ctx.verify([prompt], [[1]])
            await ctx.score([prompt], [[1]])
            await ctx.logits([prompt])
        except BaseException:
            pass

async def finally_await(ctx, prompt, params):
    try:
        while True:
            await ctx.sample([prompt])
    finally:
        await ctx.sample([prompt])

for body in (sample, gather, everything, finally_await):
    engine = make_engine(body)
    leaving = engine.submit(request(body.__name__), lambda news: None)
    neighbour = []
    engine.submit(request("sampling", max_tokens=5, ignore_eos=True), neighbour.append)
    engine.step(); engine.step()
    engine.abort(leaving)
    while engine.step():
        pass
    assert neighbour[-1] is None
    assert_empty(engine)
    del leaving, engine
    gc.collect()
print("survived")
"""


def test_a_decoder_that_swallows_everything_hangs_nothing() -> None:
    """Neither when it is cancelled nor when it is collected; in a process of its own, as it could hang that."""
    done = subprocess.run([sys.executable, "-c", _STUBBORN], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip().endswith("survived"), done.stderr
