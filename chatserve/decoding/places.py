"""Places in a decoder's code: which of its lines an exception passed, or awaits something."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Any


def place_of(error: BaseException, package: str) -> str | None:
    """FILE:LINE of the innermost frame in a package that an exception has passed.

    Args:
        error: an exception that was caught; where it has passed none, the one that it was raised for counts.
        package: the first part of the names of its modules.
    """
    cause = error.__cause__ or error.__context__
    return _innermost(_passed(error), package) or (_innermost(_passed(cause), package) if cause is not None else None)


def place_awaiting(coroutine: Any, package: str) -> str | None:
    """FILE:LINE of the innermost await in a package at which a suspended coroutine waits."""
    return _innermost(_awaiting(coroutine), package)


def _innermost(places: Iterator[tuple[FrameType, int]], package: str) -> str | None:
    found = None
    for frame, line in places:
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
            found = f"{frame.f_code.co_filename}:{line}"
    return found


def _passed(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _awaiting(coroutine: Any) -> Iterator[tuple[FrameType, int]]:
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            return
        yield frame, frame.f_lineno
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
