"""Threads of the numeric libraries: one OpenMP pool for torch and numba, whose threads spin only briefly.

torch and numba's `omp` layer each bring a libgomp. Two pools fight: after a parallel region the workers of one keep
spinning on the cores that the other one needs. When the system's libgomp is loaded before torch, the dynamic linker
gives it to both.

By default a thread that waits for another one spins for milliseconds. When anything else wants a core (the event loop
of the server does), it then spins against the very thread that it waits for: linear layers took 3 to 4 times as long
on a busy 2-core machine as with a short spin.

numba's default layer, `workqueue`, aborts the process when two threads enter parallel code at once, so `omp` comes
first.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

_NUMBA_OPENMP = "libgomp.so.1.0.0"
"""The name under which numba's wheels ask for the system's libgomp."""

_SPIN_COUNT = "3000"
"""Turns of libgomp's waiting loop before a thread sleeps, tens of microseconds: longer than the gaps between parallel
regions of a step. At 1000 the threads slept in between, and a small region took 100 us instead of 11."""


def prepare_threads() -> None:
    """Set up OpenMP for torch and numba. Call it before torch is imported; later it does no harm but little good."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)  # libgomp reads it once, when it is loaded
    with contextlib.suppress(OSError):  # not Linux, or no system libgomp: numba falls back to another layer
        ctypes.CDLL(_NUMBA_OPENMP)
    from numba import config

    config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]  # type: ignore[attr-defined]
