"""A decoder that misuses the API ends its own request, with a clear text, and harms nobody."""

from __future__ import annotations

import asyncio
import functools
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from chatserve.decoding import Context, Params, Rejected, Sample, Sequence, decoder
from chatserve.engine.async_engine import AsyncEngine
from chatserve.errors import ChatserveError, ContextLengthError, DecoderError, GenerationError, RequestError
from tests.decoding.harness import Body, assert_empty, make_engine, request, run

NEIGHBOURS = [request("sampling", max_tokens=9, seed=8), request("parallel", range(30), n=2, max_tokens=7, seed=9)]


def fate(body: Body, limits: dict[str, Any] | None = None, **fields: Any) -> ChatserveError:
    """Run the decoder among neighbours, who must finish as if they were alone; the error that it ended with."""
    engine = make_engine(body, **(limits or {}))
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
    ("append text", "'t' is not a token id", lambda ctx, seq: seq.append("text")),
    ("append a fraction", "1.5 is not a token id", lambda ctx, seq: seq.append([1.5])),
    ("append nothing", "None is not a token id", lambda ctx, seq: seq.append(None)),
    ("append a sample of nothing", "None is not a token id", lambda ctx, seq: seq.append(Sample(None))),  # type: ignore[arg-type]
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


async def rewrite_behind_a_shorter_prefix(ctx: Context, prompt: Sequence, params: Any) -> None:
    first = ctx.sequence([1])
    second = first.fork()
    first.append([97, 98, 99])
    second.append([97, 98, 120])
    if not prompt.num_generated:
        ctx.publish(first)
    ctx.publish(second, length=min(2, prompt.num_generated or 2))
    ctx.publish(second)


async def leaves(ctx: Context, prompt: Sequence, params: Any) -> None:
    raise SystemExit(3)


async def is_cancelled(ctx: Context, prompt: Sequence, params: Any) -> None:
    raise asyncio.CancelledError


async def leaves_a_gather(ctx: Context, prompt: Sequence, params: Any) -> None:
    await ctx.gather(ctx.sample([prompt]), leaves(ctx, prompt, params))


async def closes_itself(ctx: Context, prompt: Sequence, params: Any) -> None:
    raise GeneratorExit


class Panic(BaseException):
    """What no `except Exception` catches."""


async def panics(ctx: Context, prompt: Sequence, params: Any) -> None:
    try:
        await ctx.sample([prompt])
    finally:
        raise Panic("everybody out")


async def panics_in_company(ctx: Context, prompt: Sequence, params: Any) -> None:
    raise BaseExceptionGroup("several", [SystemExit(1), Panic()])


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
    (
        "a rewrite behind a shorter prefix",
        r"published token \d+ at position \d; it cannot",
        rewrite_behind_a_shorter_prefix,
    ),
    ("exit", "the decoder raised SystemExit: 3", leaves),
    ("exit in a gather", "the decoder raised SystemExit: 3", leaves_a_gather),
    ("cancelled", "the decoder raised CancelledError", is_cancelled),
    ("closed", "the decoder raised GeneratorExit", closes_itself),
    ("a base exception", "the decoder raised Panic: everybody out", panics),
    ("a group of them", r"the decoder raised BaseExceptionGroup: several \(2", panics_in_company),
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
    assert isinstance(error, (DecoderError, ContextLengthError))
    assert error.code == ("decoder_error" if isinstance(error, DecoderError) else "context_length_exceeded")
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


ROWS: dict[str, Callable[[Context, list[Sequence]], Awaitable[Any]]] = {
    "sample": lambda ctx, seqs: ctx.sample(seqs),
    "verify": lambda ctx, seqs: ctx.verify(seqs, [[65]] * len(seqs)),
    "topk": lambda ctx, seqs: ctx.topk(seqs, 2),
    "logits": lambda ctx, seqs: ctx.logits(seqs, stage="warped"),
    "score": lambda ctx, seqs: ctx.score(seqs, [[65, 66]] * len(seqs)),
    "gather": lambda ctx, seqs: ctx.gather(ctx.sample(seqs), ctx.topk(seqs, 1)),
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_awaiting_nothing_for_ever_ends_at_the_row_budget(rows: Callable[[Context, list[Sequence]], Any]) -> None:
    async def idle(ctx: Context, prompt: Sequence, params: Any) -> None:
        while not prompt.ended:
            await rows(ctx, [])

    assert "rows without coming to an end" in str(fate(idle, max_tokens=1))


# between naming sequences and awaiting their rows


@pytest.mark.parametrize("num_awaits", [0, 2])
@pytest.mark.parametrize("is_gathered", [False, True], ids=["alone", "gathered"])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_a_sequence_freed_before_its_rows_are_awaited(
    rows: Callable[[Context, list[Sequence]], Any], is_gathered: bool, num_awaits: int
) -> None:
    async def name(ctx: Context, seqs: list[Sequence]) -> None:
        await rows(ctx, seqs)

    async def free(ctx: Context, prompt: Sequence, seq: Sequence) -> None:
        seq.free()
        await ctx.sample([prompt])

    async def late(ctx: Context, prompt: Sequence, params: Any) -> None:
        doomed = prompt.fork()
        if is_gathered:
            await ctx.gather(name(ctx, [prompt, doomed]), free(ctx, prompt, doomed))
        else:
            wanted = rows(ctx, [prompt, doomed])
            doomed.free()
            await wanted

    assert "freed between naming it and awaiting its rows" in str(fate(after(num_awaits, late)))


@pytest.mark.parametrize("is_gathered", [False, True], ids=["alone", "gathered"])
@pytest.mark.parametrize("kept", range(3))
def test_a_sequence_truncated_before_its_rows_are_awaited(kept: int, is_gathered: bool) -> None:
    async def truncate(ctx: Context, prompt: Sequence, length: int) -> None:
        prompt.truncate(length)
        await ctx.topk([prompt], 1)

    async def late(ctx: Context, prompt: Sequence, params: Any) -> None:
        length = len(prompt) + kept
        prompt.append([65, 66, 67])
        wanted = ctx.logits([prompt.fork(), prompt], last=len(prompt))
        if is_gathered:
            await ctx.gather(wanted, truncate(ctx, prompt, length))
        else:
            prompt.truncate(length)
            await wanted

    assert "truncated between naming it and awaiting its rows" in str(fate(late))


# lengths


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


# numbers

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


# at its end


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


async def _leave(ctx: Context, prompt: Sequence, params: Any) -> None:
    await ctx.sample([prompt])
    raise SystemExit(3)


async def _cancel(ctx: Context, prompt: Sequence, params: Any) -> None:
    await ctx.sample([prompt])
    raise asyncio.CancelledError


@pytest.mark.parametrize("body", [_timeout, _future, _sleep, _leave, _cancel], ids=lambda body: body.__name__)
async def test_asyncio_inside_a_decoder_does_not_reach_the_engine(body: Body) -> None:
    engine = AsyncEngine(make_engine(body))
    neighbour = await engine.submit(NEIGHBOURS[0])
    with pytest.raises(GenerationError, match="await|raised"):
        async for _ in await engine.submit(request(body.__name__)):
            pass
    assert [*[delta async for delta in neighbour], None] == solo(0)
    assert engine.status == "ready"
    assert engine.stats()["blocks_used"] == 0
    again = await engine.submit(NEIGHBOURS[0])
    assert [*[delta async for delta in again], None] == solo(0)
    await engine.shutdown(1)


@pytest.mark.parametrize("body", [leaves, is_cancelled, panics_in_company], ids=lambda body: body.__name__)
async def test_a_base_exception_at_once_does_not_reach_the_engine(body: Body) -> None:
    engine = AsyncEngine(make_engine(body))
    with pytest.raises(DecoderError, match="the decoder raised"):
        await engine.submit(request(body.__name__))
    assert [*[delta async for delta in await engine.submit(NEIGHBOURS[0])], None] == solo(0)
    await engine.shutdown(1)


def _fails(error: BaseException) -> Callable[[Any, int], int]:
    def sequences(params: Any, n: int) -> int:
        raise error

    return sequences


COUNTS: dict[str, Callable[..., Any]] = {
    "an error": _fails(KeyError("x")),
    "nothing": lambda params, n: None,
    "text": lambda params, n: "3",
    "a fraction": lambda params, n: 2.5,
    "no arguments": lambda: 1,
}


@pytest.mark.parametrize(
    "count",
    [
        *(pytest.param(count, id=name) for name, count in COUNTS.items()),
        pytest.param(_fails(SystemExit(3)), id="exit"),
    ],
)
async def test_a_sequences_function_that_fails_ends_its_own_request_only(count: Callable[[Any, int], int]) -> None:
    inner = make_engine(decoder("counted", sequences=count)(_sleep))
    engine = AsyncEngine(inner)
    neighbour = await engine.submit(NEIGHBOURS[0])
    with pytest.raises(DecoderError, match="decoder 'counted': its `sequences` function failed"):
        await engine.submit(request("counted"))
    assert [*[delta async for delta in neighbour], None] == solo(0)
    assert engine.status == "ready"
    await engine.shutdown(1)
    assert_empty(inner)


class Picky(Params, frozen=True):
    def __post_init__(self) -> None:
        raise LookupError("not today")


async def test_parameters_that_cannot_be_made_end_their_own_request_only() -> None:
    engine = AsyncEngine(make_engine(decoder("picky", params=Picky)(_sleep)))
    with pytest.raises(ChatserveError, match="not today"):
        await engine.submit(request("picky"))
    assert engine.status == "ready"
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
