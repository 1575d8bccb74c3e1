"""A decoder that misuses the API ends its own request, with a clear text, and harms nobody."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from chatserve.decoding import Context, Sample, Sequence, complete, decoder
from chatserve.engine import Engine
from chatserve.errors import ContextLengthError, DecoderError
from tests.decoding import company
from tests.decoding.company import (
    ROWS,
    Misuse,
    Panic,
    fate,
    is_cancelled,
    leaves,
    panics_in_company,
)
from tests.decoding.harness import Body, assert_empty, make_engine, request


async def plain(ctx: Context, prompt: Sequence, params: Any) -> None:
    await complete(ctx, [prompt], publish=True)


def freed(prompt: Sequence) -> Sequence:
    child = prompt.fork()
    child.free()
    return child


def ended(ctx: Context, prompt: Sequence) -> Sequence:
    child = prompt.fork()
    child.append(ctx.end_tokens[0])
    return child


def elsewhere(action: Callable[[], object]) -> None:
    """Do it in another thread; raises here what it raises there."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(action).result()


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
    ("fork in a thread", "not by another thread", lambda ctx, seq: elsewhere(seq.fork)),
    ("append in a thread", "not by another thread", lambda ctx, seq: elsewhere(lambda: seq.append(65))),
    ("truncate in a thread", "not by another thread", lambda ctx, seq: elsewhere(lambda: seq.truncate(5))),
    ("free in a thread", "not by another thread", lambda ctx, seq: elsewhere(seq.free)),
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


async def leaves_a_gather(ctx: Context, prompt: Sequence, params: Any) -> None:
    await ctx.gather(ctx.sample([prompt]), leaves(ctx, prompt, params))


async def closes_itself(ctx: Context, prompt: Sequence, params: Any) -> None:
    raise GeneratorExit


async def panics(ctx: Context, prompt: Sequence, params: Any) -> None:
    try:
        await ctx.sample([prompt])
    finally:
        raise Panic("everybody out")


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
def test_misuse_ends_its_own_request_only(
    message: str, body: Body, num_awaits: int, caplog: pytest.LogCaptureFixture
) -> None:
    error = fate(after(num_awaits, body))
    assert isinstance(error, (DecoderError, ContextLengthError))
    if isinstance(error, DecoderError):
        assert error.place is not None
        assert error.place.partition(":")[0] in (__file__, company.__file__), "the line is the decoder's own"
        [line] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert line.endswith(f"its decoder bad failed at {error.place}: {error.message}")
    assert error.code == ("decoder_error" if isinstance(error, DecoderError) else "context_length_exceeded")
    assert re.search(message, error.message), error.message


async def names_a_freed_one(ctx: Context, prompt: Sequence, params: Any) -> None:
    prompt.free()
    await ctx.sample([prompt])  # here


async def frees_too_early(ctx: Context, prompt: Sequence, params: Any) -> None:
    wanted = ctx.sample([prompt])
    prompt.free()
    await wanted  # here


async def divides_by_zero(ctx: Context, prompt: Sequence, params: Any) -> None:
    np.testing.assert_array_equal(1, 2)  # here


async def fails_in_a_helper(ctx: Context, prompt: Sequence, params: Any) -> None:
    async def helper() -> None:
        await ctx.sample(prompt)  # type: ignore[arg-type]  # here

    await ctx.gather(helper())


async def fails_in_ours(ctx: Context, prompt: Sequence, params: Any) -> None:
    await complete(ctx, [1])  # type: ignore[list-item]  # here


async def sleeps(ctx: Context, prompt: Sequence, params: Any) -> None:
    await asyncio.sleep(0)  # here


async def cleans_up_badly(ctx: Context, prompt: Sequence, params: Any) -> None:
    try:
        await ctx.sample([])
    finally:
        prompt.append("x")  # type: ignore[arg-type]  # here


@pytest.mark.parametrize("num_awaits", [0, 2])
@pytest.mark.parametrize(
    "body",
    [names_a_freed_one, frees_too_early, divides_by_zero, fails_in_a_helper, fails_in_ours, sleeps, cleans_up_badly],
    ids=lambda body: body.__name__,
)
def test_the_line_in_the_log_is_the_decoders(body: Body, num_awaits: int, caplog: pytest.LogCaptureFixture) -> None:
    lines, first = inspect.getsourcelines(body)
    [line] = [first + index for index, text in enumerate(lines) if "# here" in text]
    error = fate(after(num_awaits, body))
    assert isinstance(error, DecoderError)
    assert error.place == f"{__file__}:{line}"
    assert f"failed at {__file__}:{line}: " in caplog.text


def test_the_line_is_no_business_of_clients() -> None:
    assert __file__ not in str(fate(names_a_freed_one))


def test_where_the_sequences_function_failed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    counts = decoder("counts", sequences=lambda params, n: params.width)(plain)  # no such field
    with pytest.raises(DecoderError, match="its `sequences` function failed") as caught:
        make_engine(counts).submit(request("counts"), lambda news: None)
    assert str(caught.value.place).startswith(f"{__file__}:")
    assert 'in <lambda>\n    counts = decoder("counts", sequences=lambda params, n: params.width)(plain)' in caplog.text


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


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("num_awaits", [0, 2])
def test_a_forgotten_append_ends_after_256_awaits(
    rows: Callable[[Context, list[Sequence]], Any], num_awaits: int
) -> None:
    count = 0

    async def forgetful(ctx: Context, prompt: Sequence, params: Any) -> None:
        nonlocal count
        spare = prompt.fork()
        while not prompt.ended:
            count += 1
            await rows(ctx, [prompt, spare])
            ctx.publish(prompt)

    error = fate(after(num_awaits, forgetful), max_tokens=9)
    if rows is ROWS["score"]:
        assert "rows without coming to an end" in str(error)
        return
    assert "256 awaits in which no sequence changed: was `append` forgotten?" in str(error)
    assert count <= 2 * 256 + 1
    assert isinstance(error, DecoderError)
    assert str(error.place).startswith(f"{__file__}:")


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_awaiting_nothing_for_ever_ends(rows: Callable[[Context, list[Sequence]], Any]) -> None:
    async def idle(ctx: Context, prompt: Sequence, params: Any) -> None:
        while not prompt.ended:
            await rows(ctx, [])

    error = str(fate(idle, max_tokens=1))
    assert "no sequence changed" in error or (rows is ROWS["score"] and "without coming to an end" in error)


def appended_and_taken_back(seq: Sequence) -> None:
    seq.append(65)
    seq.truncate(len(seq) - 1)


CHANGES: dict[str, Callable[[Sequence], Any]] = {
    "append": lambda seq: seq.append(65),
    "append and take back": appended_and_taken_back,
    "fork": lambda seq: seq.fork(),
    "fork and free": lambda seq: seq.fork().free(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("period", [1, 200])
def test_a_change_now_and_then_is_progress(change: Callable[[Sequence], Any], period: int) -> None:
    async def slow(ctx: Context, prompt: Sequence, params: Any) -> None:
        ctx.publish(prompt)
        other = prompt.fork()
        for index in range(520):
            await ctx.sample([other])
            if index % period == 0:
                change(prompt)

    engine = make_engine(slow, max_sequences=600, num_blocks=2048)
    heard: list[Any] = []
    engine.submit(request("slow", max_tokens=2000), heard.append)
    while Engine.step(engine):  # with so many forks, checking every step takes too long
        pass
    assert_empty(engine)
    assert heard[-1] is None


def test_forking_for_ever_without_keeping_a_fork_ends_at_the_row_budget() -> None:
    async def loses_its_forks(ctx: Context, prompt: Sequence, params: Any) -> None:
        while not prompt.ended:
            with prompt.fork() as fork:
                fork.append(await ctx.sample([prompt]))

    error = str(fate(loses_its_forks, max_tokens=1))
    assert "rows without coming to an end; does it append what it gets, and look at `ended`?" in error


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
