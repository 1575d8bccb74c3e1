"""Threads of the numeric libraries: one OpenMP pool for torch and numba, one thread for each physical core.

torch and numba's `omp` layer each bring a libgomp. Two pools fight: after a parallel region the workers of one keep spinning
on the cores that the other one needs. When the system's libgomp is loaded before torch, the dynamic linker gives it to both.
numba's default layer, `workqueue`, aborts the process when two threads enter parallel code at once, so `omp` is asked for.
"""

from __future__ import annotations

import contextlib
import ctypes

_NUMBA_OPENMP = "libgomp.so.1.0.0"
"""The name under which numba's wheels ask for the system's libgomp."""


def prepare_threads() -> None:
    """Make torch and numba share one OpenMP pool. Call it before torch is imported; later it does no harm but no good."""
    with contextlib.suppress(OSError):  # not Linux, or no system libgomp: numba falls back to another layer
        ctypes.CDLL(_NUMBA_OPENMP)
    import numba

    numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]
