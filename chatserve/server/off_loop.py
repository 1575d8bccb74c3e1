"""`off_loop_when_long`: work on long bodies beside the event loop, so that streams and health checks go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

# Reading, checking and tokenising this much takes about two milliseconds; more would delay everybody's next token.
_MAX_BYTES_ON_LOOP = 2048

# Threads of their own: those of asyncio may all be busy with grammars, each for half a second.
_workers = ThreadPoolExecutor(4, thread_name_prefix="chatserve-bodies")


async def off_loop_when_long(num_bytes: int, work: Callable[[], Result]) -> Result:
    """Run `work` here when it is about few bytes, else in a thread."""
    if num_bytes <= _MAX_BYTES_ON_LOOP:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_workers, work)
