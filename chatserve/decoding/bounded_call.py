"""`call_bounded`: run a stranger's code that may do anything, such as an import, and come back in any case."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def call_bounded(function: Callable[[], Result], limit: float) -> Result:
    """The function's result; it runs in a thread of its own.

    Raises the Exception that it raises, RuntimeError in place of SystemExit and its like, or TimeoutError after `limit`
    seconds. A call that does not end then is interrupted if it runs Python code, and left behind if it waits.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="chatserve-plugin", daemon=True)
    thread.start()
    thread.join(limit)
    if results:
        return results[0]
    if errors:
        raise errors[0] if isinstance(errors[0], Exception) else RuntimeError(f"raised {errors[0]!r}") from errors[0]
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    raise TimeoutError(f"did not end within {limit:g} s")
