"""`DeferredInterrupts`: Ctrl-C between the steps of an engine instead of in the middle of one."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class DeferredInterrupts:
    """Within a ``with`` block SIGINT is noted, and raised as KeyboardInterrupt by `check` or at the end of the block.

    An exception anywhere in the bookkeeping of blocks would leave it half done. Only where Python's default handler is
    in place and in the main thread; elsewhere there is nothing to defer. A second Ctrl-C does not wait.
    """

    def __init__(self) -> None:
        self._is_noted = False
        self._is_watching = False

    def __enter__(self) -> DeferredInterrupts:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._is_watching = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *others: object) -> None:
        if self._is_watching:
            self._is_watching = False
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt if there was a SIGINT."""
        if self._is_noted:
            self._is_noted = False
            raise KeyboardInterrupt

    def _note(self, signum: int, frame: FrameType | None) -> Any:
        if self._is_noted:
            signal.default_int_handler(signum, frame)
        self._is_noted = True
