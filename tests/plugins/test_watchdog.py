"""A decoder that does not yield is interrupted, wherever it is, and nothing of ours is harmed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, TypeAlias

import pytest

from chatserve.decoding import Context, DecoderError, Params, Sampling, Sequence, complete
from chatserve.decoding import decoder as make_decoder
from chatserve.decoding.group import Rules, SequenceGroup
from chatserve.engine import GenerationRequest
from chatserve.engine.watchdog import DecoderTimeout, Watchdog
from chatserve.kv import BlockPool, check_integrity
from chatserve.testing import VOCAB_SIZE, RandomLogits, TrialEngine, byte_vocabulary

LIMIT = 0.1
Started: TypeAlias = Coroutine[Any, Any, None]


class Harness:
    """A sequence group on a pool, as a decoder sees it, without an engine."""

    def __init__(self) -> None:
        self.pool = BlockPool(64, 4)
        rules = Rules(byte_vocabulary(), VOCAB_SIZE, frozenset({256}), (), None, 0, 10**9, 10**9)
        self.group = SequenceGroup(self.pool, rules, max_sequences=16)
        self.ctx = Context(self.group, Sampling(), host=None, trace=None)  # type: ignore[arg-type]
        self.prompt = Sequence(self.group, list(range(30)), 30, key=1)
        self.prompt._table.extend(30)

    def check(self) -> None:
        """The books are in order, and stay so when everything is released."""
        check_integrity(self.pool, [sequence._table for sequence in self.group.live])
        assert self.prompt.tokens[:30] == list(range(30))
        self.group.close()
        assert self.pool.num_used == 0


def bare_loop(harness: Harness) -> None:
    while True:
        pass


def calls_of_plugins_own(harness: Harness) -> None:
    while True:
        sum(range(100))


def sleep(harness: Harness) -> None:
    time.sleep(30)


def fork_and_free(harness: Harness) -> None:
    while True:
        harness.prompt.fork().free()


def append_and_truncate(harness: Harness) -> None:
    for _ in itertools.repeat(None):
        harness.prompt.append([65, 66])
        harness.prompt.truncate(30)


def except_exception(harness: Harness) -> None:
    while True:
        with contextlib.suppress(Exception):
            harness.prompt.fork().free()


def finally_loops_again(harness: Harness) -> None:
    try:
        bare_loop(harness)
    finally:
        bare_loop(harness)


def catastrophic_pattern(harness: Harness) -> None:
    re.match(r"(a+)+$", "a" * 60 + "b")


def endless_argument(harness: Harness) -> None:
    harness.ctx.sample(harness.prompt for _ in iter(int, 1) if False)


def tokenize(harness: Harness) -> None:
    while True:
        harness.ctx.tokenize("one two three " * 2000)


def tokenize_without_a_line_of_its_own(harness: Harness) -> None:
    deque(map(harness.ctx.tokenize, itertools.repeat("one two three " * 2000)), maxlen=0)


def read_text(harness: Harness) -> None:
    harness.prompt.append([65, 66] * 2000)
    while True:
        assert harness.prompt.text


MISBEHAVIOUR = [
    bare_loop,
    calls_of_plugins_own,
    sleep,
    fork_and_free,
    append_and_truncate,
    except_exception,
    finally_loops_again,
    catastrophic_pattern,
    endless_argument,
    tokenize,
    tokenize_without_a_line_of_its_own,
    read_text,
]


async def decoder(harness: Harness, misbehave: Callable[[Harness], None]) -> None:
    await harness.ctx.sample([harness.prompt])
    misbehave(harness)


def started(harness: Harness, coroutine: Started) -> Started:
    coroutine.send(None)
    return coroutine


@pytest.mark.parametrize("misbehave", MISBEHAVIOUR, ids=lambda function: function.__name__)
def test_a_decoder_that_does_not_yield_is_interrupted_in_time(misbehave: Callable[[Harness], None]) -> None:
    harness, watchdog = Harness(), Watchdog(LIMIT)
    coroutine = started(harness, decoder(harness, misbehave))
    begin = time.monotonic()
    with watchdog, pytest.raises(DecoderError, match="interrupted: it ran for 0.1 s without yielding"):
        watchdog.call(coroutine.send, [[None]])
    assert LIMIT * 0.9 < time.monotonic() - begin < 20 * LIMIT
    harness.check()


def test_the_exception_seen_inside_is_no_exception_subclass() -> None:
    seen: list[BaseException] = []

    def spin() -> None:
        try:
            bare_loop(Harness())
        except BaseException as error:
            seen.append(error)

    with pytest.raises(DecoderError):  # although it was swallowed
        Watchdog(LIMIT).call(spin)
    assert isinstance(seen[0], DecoderTimeout)
    assert not isinstance(seen[0], Exception)


def test_what_waits_between_decoder_and_engine_does_not_shield_it() -> None:
    """In the `until` of `complete`, and in one branch of a nested gather, whose other branches are closed."""
    closed: list[str] = []

    async def branch(harness: Harness) -> None:
        await complete(harness.ctx, [harness.prompt], until=has_come_true)

    def has_come_true(sequence: Sequence) -> bool:
        while True:
            pass

    async def waiting(harness: Harness) -> None:
        try:
            await harness.ctx.sample([harness.prompt])
            await harness.ctx.sample([harness.prompt])
        finally:
            closed.append("waiting")

    async def nested(harness: Harness) -> None:
        await harness.ctx.gather(waiting(harness), harness.ctx.gather(branch(harness)))

    harness = Harness()
    coroutine = started(harness, nested(harness))
    with pytest.raises(DecoderError, match="interrupted"):
        Watchdog(LIMIT).call(coroutine.send, [[65], [65]])
    assert closed == ["waiting"]
    harness.check()


def test_a_finally_block_that_loops_at_close_is_interrupted() -> None:
    async def stubborn(harness: Harness) -> None:
        try:
            await harness.ctx.sample([harness.prompt])
        finally:
            bare_loop(harness)

    harness = Harness()
    coroutine = started(harness, stubborn(harness))
    with pytest.raises(DecoderError, match="interrupted"):
        Watchdog(LIMIT).call(coroutine.close)
    harness.check()


def test_our_own_code_is_never_interrupted_in_the_middle() -> None:
    """Appending costs far more than the limit; the exception comes after it, when the books are in order."""
    harness = Harness()
    reached: list[int] = []

    def append_much() -> None:
        harness.prompt.append(itertools.islice(itertools.cycle([65, 66, 67]), 10**5))
        while True:
            reached.append(harness.prompt.num_generated)

    with pytest.raises(DecoderError, match="interrupted"):
        Watchdog(0.02).call(append_much)
    assert harness.prompt.num_generated == 10**5
    assert set(reached) <= {10**5}
    harness.prompt.truncate(30)
    harness.check()


def test_many_short_calls_are_not_one_long_call() -> None:
    watchdog = Watchdog(LIMIT)
    with watchdog:
        begin = time.monotonic()
        while time.monotonic() - begin < 3 * LIMIT:
            watchdog.call(time.sleep, LIMIT / 10)
    assert watchdog.call(int, "7") == 7


def test_errors_and_the_end_of_a_coroutine_pass_through() -> None:
    harness, watchdog = Harness(), Watchdog(LIMIT)
    coroutine = started(harness, decoder(harness, lambda harness: None))
    with watchdog:
        with pytest.raises(StopIteration):
            watchdog.call(coroutine.send, [[None]])
        with pytest.raises(ValueError, match="invalid literal"):
            watchdog.call(int, "x")


def test_after_an_interruption_the_next_decoder_has_its_full_time() -> None:
    watchdog = Watchdog(LIMIT)
    with watchdog:
        with pytest.raises(DecoderError):
            watchdog.call(sleep, Harness())
        time.sleep(2 * LIMIT)  # ours, not a decoder's
        assert watchdog.call(time.sleep, LIMIT / 4) is None
        with pytest.raises(DecoderError):
            watchdog.call(sleep, Harness())


@pytest.fixture
def alarms() -> Iterator[list[float]]:
    """A foreign SIGALRM handler, as pytest-timeout or an application has, which notes when it is called."""
    heard: list[float] = []

    def note(signum: int, frame: FrameType | None) -> None:
        heard.append(time.monotonic())

    timer = signal.setitimer(signal.ITIMER_REAL, 0)
    handler = signal.signal(signal.SIGALRM, note)
    yield heard
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *timer)


def test_a_foreign_timer_keeps_its_time_and_its_handler(alarms: list[float]) -> None:
    handler = signal.getsignal(signal.SIGALRM)
    begin = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.4)
    watchdog = Watchdog(LIMIT)
    for _ in range(3):
        with watchdog:
            watchdog.call(time.sleep, 0.03)
    assert signal.getsignal(signal.SIGALRM) is handler
    assert 0.1 < signal.getitimer(signal.ITIMER_REAL)[0] < 0.31
    time.sleep(0.4)
    assert len(alarms) == 1
    assert alarms[0] - begin >= 0.39


def test_a_foreign_timer_that_is_due_meanwhile_is_served(alarms: list[float]) -> None:
    signal.setitimer(signal.ITIMER_REAL, LIMIT / 2)
    with pytest.raises(DecoderError):
        Watchdog(LIMIT).call(sleep, Harness())
    assert len(alarms) == 1
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_without_timers_of_others_nothing_ticks_between_steps(alarms: list[float]) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    watchdog = Watchdog(LIMIT)
    with watchdog:
        watchdog.call(time.sleep, LIMIT / 2)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    signal.raise_signal(signal.SIGALRM)  # one that comes late does not end the process
    assert alarms == []


def test_in_another_thread_it_is_logged_once_with_the_place(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = Watchdog(LIMIT)
    with caplog.at_level(logging.WARNING, logger="chatserve.engine"):
        thread = threading.Thread(target=lambda: watchdog.call(doze, 5 * LIMIT))
        thread.start()
        thread.join()
    [record] = caplog.records
    assert "has run for 0.1 s without yielding; it is in doze" in record.getMessage()


def test_in_another_thread_short_calls_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = Watchdog(LIMIT)

    def work() -> None:
        with watchdog:
            for _ in range(30):
                watchdog.call(doze, LIMIT / 10)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert caplog.records == []


def doze(seconds: float) -> None:
    time.sleep(seconds)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_it_works_in_a_callback_of_an_event_loop(loop: str) -> None:
    factory = asyncio.new_event_loop if loop == "asyncio" else pytest.importorskip("uvloop").new_event_loop
    harness, watchdog = Harness(), Watchdog(LIMIT)

    async def main() -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def step() -> None:
            try:
                with watchdog:
                    watchdog.call(fork_and_free, harness)
            except DecoderError as error:
                ended.set_exception(error)

        asyncio.get_running_loop().call_soon(step)
        with pytest.raises(DecoderError, match="interrupted"):
            await ended
        await asyncio.sleep(LIMIT)

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
    harness.check()


@make_decoder("plain")
async def plain(ctx: Context, prompt: Sequence, params: Params) -> None:
    await complete(ctx, [prompt], publish=True)


class HangingParams(Params, frozen=True):
    tokens: int = 0


@make_decoder("hanging", params=HangingParams)
async def hanging(ctx: Context, prompt: Sequence, params: HangingParams) -> None:
    """Hangs after some tokens, forking without end, and again when it is closed."""
    try:
        await complete(ctx, [prompt], until=lambda seq: seq.num_generated >= params.tokens, publish=True)
        while True:
            prompt.fork().free()
    finally:
        doze(30)


def engine_request(name: str, **params: int) -> GenerationRequest:
    sampling = Sampling(max_tokens=8, seed=1, ignore_eos=True)
    return GenerationRequest(
        prompt_token_ids=tuple(range(20)), sampling=sampling, decoder=name, decoder_params=dict(params)
    )


def test_in_the_engine_only_the_request_of_that_decoder_fails() -> None:
    [alone] = TrialEngine([plain], RandomLogits(VOCAB_SIZE)).run(engine_request("plain"))
    engine = TrialEngine([plain, hanging], RandomLogits(VOCAB_SIZE), decoder_timeout=LIMIT)
    hung, other = engine.run(engine_request("hanging", tokens=3), engine_request("plain"))
    assert isinstance(hung.error, DecoderError)
    assert "interrupted: it ran for 0.1 s without yielding" in str(hung.error)
    assert hung.published == [alone.answers()[0].token_ids[:3]]
    assert other.answers() == alone.answers()


def test_in_the_engine_a_decoder_that_hangs_at_once_is_refused() -> None:
    @make_decoder("never")
    async def never(ctx: Context, prompt: Sequence, params: Params) -> None:
        bare_loop(Harness())

    engine = TrialEngine([never], RandomLogits(VOCAB_SIZE), decoder_timeout=LIMIT)
    with pytest.raises(DecoderError, match="interrupted"):
        engine.start(engine_request("never"))
    engine.check_empty()
