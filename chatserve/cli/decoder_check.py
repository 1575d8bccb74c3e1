"""`Checkup`: a decoder against the rules that can be seen on it, and against the conformance suite."""

from __future__ import annotations

import gc
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from chatserve.decoding.places import place_of
from chatserve.decoding.registry import Decoder
from chatserve.errors import ChatserveError, DecoderError, GenerationError

_PATIENCE = 3  # checks that may end with one and the same failure of the decoder before the rest is not tried
_TIMEOUT = 1.0  # the server's default `--decoder-timeout`


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule, and what is wrong; `problem` is empty when nothing is."""

    title: str
    problem: str


@dataclass(frozen=True, slots=True)
class _Cause:
    """What is wrong, and which line did it; `is_fatal`: other checks will hardly get farther."""

    text: str
    place: str | None = None
    is_fatal: bool = False

    @property
    def key(self) -> tuple[str | None, str]:
        """What it has in common with the same fault on other tokens."""
        return self.place, re.sub(r"\d+|'[^']*'", "#", self.text)[:80]

    def __str__(self) -> str:
        return self.text + (f"\n{self.place}" if self.place else "")


class Checkup:
    """One decoder, tried on the fake model rule by rule.

    Args:
        decoder: the decoder.
        params: its parameters, as a request gives them.
        n: choices to ask for.
        ends_by_itself: it is meant to end choices by rules of its own.

    Attributes:
        num_failed: rules that were found broken so far.
        num_untried: rules that were not tried, because the decoder failed in one way again and again.
    """

    def __init__(self, decoder: Decoder, params: dict[str, Any], n: int = 1, ends_by_itself: bool = False) -> None:
        from chatserve.testing import DecoderConformance

        self._titles = list(DecoderConformance.titles())
        self._decoder = decoder
        attributes = {"params": params, "n": n, "ends_by_itself": ends_by_itself, "decoder_timeout": _TIMEOUT}
        self._suite = type("Suite", (DecoderConformance,), {"decoder": decoder, **attributes})
        self._counts: dict[tuple[str | None, str], int] = {}
        self.num_failed = self.num_untried = 0

    def findings(self) -> Iterator[Finding]:
        """Check one rule after another. What is wrong is told in full once, and has a number where it comes again."""
        is_described = bool(self._decoder.description)
        self.num_failed += not is_described
        yield Finding(
            "It says what it does.", "" if is_described else "the function has no docstring; lists show its first line"
        )
        for number, (method, title) in enumerate(self._titles, 1):
            cause = _cause(getattr(self._suite(), method), self._decoder)
            yield Finding(title, self._note(cause) if cause else "")
            if cause and cause.is_fatal and self._counts[cause.key] == _PATIENCE:
                self.num_untried = len(self._titles) - number
                return

    def verdict(self) -> str:
        """What came out, in one line."""
        if not self.num_failed:
            return "all is well"
        repeated = [f"[{number}] in {count}" for number, count in enumerate(self._counts.values(), 1) if count > 1]
        checks = "check" if self.num_failed == 1 else "checks"
        parts = [f"{self.num_failed} {checks} failed" + (f" ({', '.join(repeated)} of them)" if repeated else "")]
        if self.num_untried:
            parts.append(f"{self.num_untried} were not tried, as it fails in the same way each time")
        return "; ".join(parts)

    def _note(self, cause: _Cause) -> str:
        self.num_failed += 1
        count = self._counts[cause.key] = self._counts.get(cause.key, 0) + 1
        number = list(self._counts).index(cause.key) + 1
        return f"[{number}] {cause}" if count == 1 else f"[{number}] again"


def _cause(test: Callable[[], None], decoder: Decoder) -> _Cause | None:
    """What a test has to complain about. A coroutine that nobody awaited explains the rest, so it goes first."""
    found = None
    with _noise_hidden(), _unawaited() as forgotten:
        try:
            test()
        except Exception as error:  # the decoder's code may raise anything
            found = _cause_of(error, decoder)
        if found:
            gc.collect()  # what the error held on to
    return forgotten[0] if forgotten else found


def _cause_of(error: Exception, decoder: Decoder) -> _Cause:
    chain = list(_chain(error))
    places = [one.place if isinstance(one, DecoderError) else place_of(one, decoder.package) for one in chain]
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, AssertionError):
        text = str(error)
    elif isinstance(error, ChatserveError):
        text = f"the request {'failed' if isinstance(error, GenerationError) else 'was refused'}: {error}"
    is_fatal = any(isinstance(one, ChatserveError) for one in chain)
    place = next(filter(None, places), None)
    return _Cause(text, f"raised at {place}" if place else None, is_fatal)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, and those that it was raised for."""
    seen: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in seen:
        seen.append(following)
        yield following
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)


@contextmanager
def _unawaited() -> Iterator[list[_Cause]]:
    """Collects the coroutines that were made meanwhile and never awaited."""
    causes: list[_Cause] = []
    depth = sys.get_coroutine_origin_tracking_depth()
    sys.set_coroutine_origin_tracking_depth(1)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RuntimeWarning)
            yield causes
        for message in (str(warning.message) for warning in caught):
            if "was never awaited" in message:
                place = re.search(r'File "(.+)", line (\d+)', message)
                text = f"{message.partition(chr(10))[0]}: an `await` is missing"
                causes.append(_Cause(text, f"made at {place[1]}:{place[2]}" if place else None, is_fatal=True))
    finally:
        sys.set_coroutine_origin_tracking_depth(depth)


@contextmanager
def _noise_hidden() -> Iterator[None]:
    """What the engine logs meanwhile, and what Python says of coroutines that do not close, is told by findings."""
    before, hook = logging.root.manager.disable, sys.unraisablehook
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = lambda unraisable: None
    try:
        yield
    finally:
        logging.disable(before)
        sys.unraisablehook = hook
