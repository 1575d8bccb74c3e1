"""`relax_garbage_collection`: fewer runs of Python's cycle collector while a server runs.

A step makes thousands of short-lived objects, which reference counting frees. With the default thresholds the collector
runs several times a step to find nothing.
"""

from __future__ import annotations

import gc


def relax_garbage_collection() -> None:
    """Take everything loaded so far out of the collector's sight, and let it run less often. Acts on the process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
