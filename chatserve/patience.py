"""`told_when_slow`: a word for whoever waits, only where there is something to wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer


@contextmanager
def told_when_slow(seconds: float, tell: Callable[[], object]) -> Iterator[None]:
    """Call `tell`, from another thread, when what is inside takes longer than so many seconds."""
    timer = Timer(seconds, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
