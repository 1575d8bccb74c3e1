"""`Watchdog`: ends a decoder that runs too long without yielding, so that only its request fails.

Decoders run on the event loop's thread; one that computes, sleeps or loops there stalls everybody. In the main thread a
timer signal interrupts it. Elsewhere (another thread, Windows) it can only be reported.

One interval timer serves all resumes of a step. Each resume starts with an age of 0 and each tick of the timer adds 1,
so a resume costs a few assignments and reads no clock, and a process that was stopped for a while harms nobody. A call
that holds the GIL cannot be interrupted, nor does it age; most long ones (``re``, ``time.sleep``) do let signals in.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import inspect
import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias, TypeVar, TypeVarTuple

from chatserve.decoding.errors import DecoderError

_TICKS = 4  # in a limit, so a decoder is interrupted after 1 to 1.25 limits
_RETRY_SECONDS = 0.001
_IDLE_TICKS = 40
_PACKAGE = str(Path(__file__).parents[1]) + "/"
_INTERRUPTIBLE = frozenset(
    f"{_PACKAGE}decoding/{name}.py" for name in ("choice", "context", "library", "registry", "search_tree", "wants")
)
_COROUTINE_FLAGS = inspect.CO_COROUTINE | inspect.CO_GENERATOR

_log = logging.getLogger("chatserve.engine")
_Given = TypeVarTuple("_Given")
_Result = TypeVar("_Result")
_Tick: TypeAlias = Callable[[FrameType | None], None]


class DecoderTimeout(BaseException):
    """Raised inside a decoder that did not yield in time; no Exception, so that ``except Exception`` lets it pass."""


def is_users_interrupt(error: BaseException) -> bool:
    """Whether this is Ctrl-C, which must go up, and not a KeyboardInterrupt of a decoder's own.

    Python raises it in the middle of whatever the main thread does only while its default handler is in place; servers
    and `asyncio.run` put theirs there.
    """
    if not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Watchdog:
    """Bounds the time of each call into decoders' code. Use it from one thread, as a context manager around a step:

        with watchdog:
            for request in requests:
                wants = watchdog.call(request.coroutine.send, answers)

    A call outside of any ``with`` sets the timer up for itself, which costs some microseconds. A SIGALRM handler of
    somebody else's stays in place outside, and is called inside when its own timer is due.

    Args:
        limit: seconds of wall time that a call may take.
    """

    def __init__(self, limit: float = 1.0) -> None:
        self.limit = limit
        self._signal_timer = _SignalTimer(limit / _TICKS, self._interrupt)
        self._thread_timer = _ThreadTimer(limit / _TICKS, self._report)
        self._timer: _SignalTimer | _ThreadTimer | None = None
        self._age: list[int] | None = None  # ticks that the current call has lived through
        self._has_interrupted = False
        self._is_lurking = False
        self._foreign_profile: Any = None

    def __enter__(self) -> Watchdog:
        assert self._timer is None, "the watchdog watches already"
        can_interrupt = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
        self._timer = self._signal_timer if can_interrupt else self._thread_timer
        self._timer.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._timer is not None
        self._timer.stop()
        self._timer = None

    def call(self, function: Callable[[*_Given], _Result], *arguments: *_Given) -> _Result:
        """Call into a decoder's code, such as ``coroutine.send`` or ``coroutine.close``.

        Raises DecoderError when the call was interrupted, whatever the decoder made of that.
        """
        if self._timer is None:
            with self:
                return self.call(function, *arguments)
        self._age = [0]
        try:
            return function(*arguments)
        finally:
            self._age = None
            if self._is_lurking:
                self._is_lurking = False
                sys.setprofile(self._foreign_profile)
            if self._has_interrupted:
                self._has_interrupted = False
                raise DecoderError(f"the decoder was interrupted: it ran for {self.limit:g} s without yielding")

    def _interrupt(self, frame: FrameType | None) -> None:
        """A tick in the watched thread, which is in `frame`: raise DecoderTimeout there if it is time to."""
        if self._is_due():
            if not _is_in_decoder(frame):
                self._signal_timer.retry()
                self._lurk()
                return
            self._raise(frame)

    def _lurk(self) -> None:
        """Wait for the decoder at its next call: one that hardly does anything but call us is never met outside."""
        if not self._is_lurking:
            self._is_lurking = True
            self._foreign_profile = sys.getprofile()
        sys.setprofile(self._on_event)

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        """A function is being entered or left; before it has done anything is a good moment to raise."""
        if event == "call":
            place = frame.f_back if _is_ours(frame.f_code) else frame
        elif event == "c_call":
            place = frame
        else:
            return
        if place is not None and not _is_ours(place.f_code) and _is_in_decoder(place, is_innermost=False):
            self._raise(frame)

    def _raise(self, frame: FrameType | None) -> None:
        if not self._has_interrupted:
            _log.warning("a decoder ran for %g s without yielding; interrupted in %s", self.limit, _place(frame))
        self._has_interrupted = True
        raise DecoderTimeout(f"ran for {self.limit:g} s without yielding")

    def _report(self, frame: FrameType | None) -> None:
        """A tick from another thread, which cannot interrupt: say once what is going on."""
        age = self._age
        if self._is_due() and age and age[0] == _TICKS + 1:
            _log.warning("a decoder has run for %g s without yielding; it is in %s", self.limit, _place(frame))

    def _is_due(self) -> bool:
        """Count a tick of the current call; whether it has lived for the whole limit."""
        age = self._age
        if age is None:
            return False
        age[0] += 1
        return age[0] > _TICKS  # the first tick may have come at once


class _SignalTimer:
    """Calls `tick` in the main thread every `period` seconds, by SIGALRM."""

    def __init__(self, period: float, tick: _Tick) -> None:
        self._period = period
        self._tick = tick
        self._handler = self._on_alarm
        self._foreign_handler: Any = None
        self._foreign_due = math.inf
        self._foreign_interval = 0.0

    def start(self) -> None:
        handler = _signal.getsignal(signal.SIGALRM)  # signal.getsignal spends 30 us in vain on finding an enum member
        if handler is not self._handler:
            signal.signal(signal.SIGALRM, self._handler)
            self._foreign_handler = handler if callable(handler) else None
        delay, self._foreign_interval = signal.setitimer(signal.ITIMER_REAL, self._period, self._period)
        self._foreign_due = time.monotonic() + delay if delay else math.inf

    def retry(self) -> None:
        """Tick again soon."""
        signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS, self._period)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self._foreign_handler:  # else ours stays: the default one ends the process, and a signal may be on its way
            signal.signal(signal.SIGALRM, self._foreign_handler)
        if self._foreign_due < math.inf:
            delay = max(1e-6, self._foreign_due - time.monotonic())
            signal.setitimer(signal.ITIMER_REAL, delay, self._foreign_interval)

    def _on_alarm(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now >= self._foreign_due:
            self._foreign_due = now + self._foreign_interval if self._foreign_interval else math.inf
            if self._foreign_handler:
                self._foreign_handler(signum, frame)
        self._tick(frame)


class _ThreadTimer:
    """Calls `tick` from a thread of its own every `period` seconds; the thread ends when it was idle for a while."""

    def __init__(self, period: float, tick: _Tick) -> None:
        self._period = period
        self._tick = tick
        self._thread: threading.Thread | None = None
        self._watched = 0  # id of the watched thread, 0: nothing to watch

    def start(self) -> None:
        self._watched = threading.get_ident()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="chatserve-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._watched = 0

    def _run(self) -> None:
        num_idle = 0
        while num_idle < _IDLE_TICKS:
            time.sleep(self._period)
            watched = self._watched
            num_idle = 0 if watched else num_idle + 1
            if watched:
                self._tick(sys._current_frames().get(watched))


def _is_in_decoder(frame: FrameType | None, is_innermost: bool = True) -> bool:
    """Whether an exception raised here stays within a decoder: not in the middle of our own bookkeeping.

    Coroutines of ours between a decoder and the engine (`complete`, `Gather`) only wait, and count as the decoder.
    """
    innermost = frame if is_innermost else None
    while frame is not None:
        if frame.f_code is Watchdog.call.__code__:
            return frame is not innermost
        if _is_ours(frame.f_code):
            return False
        frame = frame.f_back
    return False


def _is_ours(code: CodeType) -> bool:
    """Whether it is code of ours that must not be left in the middle."""
    file = code.co_filename
    return file.startswith(_PACKAGE) and file not in _INTERRUPTIBLE and not code.co_flags & _COROUTINE_FLAGS


def _place(frame: FrameType | None) -> str:
    return f"{frame.f_code.co_qualname}, {frame.f_code.co_filename}:{frame.f_lineno}" if frame else "unknown code"
