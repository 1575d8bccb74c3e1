"""`PageMemory`: how much memory there is for KV pages, on the host or on a CUDA device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_GIB = 1 << 30
_HOST_SHARE, _HOST_LIMIT = 0.5, 4 * _GIB  # the rest of a host's memory is for everybody else
_DEVICE_SHARE = 0.9  # the rest of a device's is for activations and captured graphs


class PageMemory(NamedTuple):
    """Bytes of memory where the pages lie.

    Attributes:
        total: of the host or the device.
        free: of it, now.
        default: what pages take unless the configuration says otherwise.
    """

    total: int
    free: int
    default: int


def page_memory(device: str) -> PageMemory:
    """Of a device as torch names it, such as ``cpu`` or ``cuda:0``; ask once the weights are loaded."""
    if not device.startswith("cuda"):
        free = free_host_memory()
        return PageMemory(_physical_pages("SC_PHYS_PAGES"), free, min(_HOST_LIMIT, int(free * _HOST_SHARE)))
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return PageMemory(total, free, int(free * _DEVICE_SHARE))


def free_host_memory() -> int:
    """Bytes that can be had without swapping; memory that only caches files counts, where the system tells it."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return _physical_pages("SC_AVPHYS_PAGES")


def _physical_pages(name: str) -> int:
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
