"""`GlobalMemory`: the arrays given to a launch, by address, with bounds, alignment and cross-thread checks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.ptx.faults import KernelFault

Integers = NDArray[np.int64]
_WORD = 4
_NOBODY, _SEVERAL = -1, -2


class _Region:
    """One array, and for each 4 bytes which thread of the launch has read and written them.

    Nothing orders the threads of different blocks: what one writes, no other may touch.
    """

    def __init__(self, base: int, data: NDArray[np.uint8]) -> None:
        self.base, self.size, self._data = base, len(data), data
        self._views: dict[int, NDArray[Any]] = {}
        num_words = -(-self.size // _WORD)
        self._writers, self._readers = np.full(num_words, _NOBODY), np.full(num_words, _NOBODY)
        self._is_written = False

    def numbers(self, width: int) -> NDArray[Any]:
        """The array as unsigned integers of `width` bytes."""
        if width not in self._views:
            whole = self._data[: self.size // width * width]
            self._views[width] = whole.view(np.dtype(f"u{width}"))
        return self._views[width]

    def note_readers(self, at: Integers, num_bytes: int, threads: Integers) -> None:
        words, thread = _words(at, num_bytes), threads[:, None]
        if self._is_written:
            writers = self._writers[words]
            if ((writers != _NOBODY) & (writers != thread)).any():
                raise KernelFault("a thread reads global memory that another thread of the launch has written")
        before = self._readers[words]
        self._readers[words] = thread
        is_shared = (self._readers[words] != thread) | ((before != _NOBODY) & (before != thread))
        self._readers[words[is_shared]] = _SEVERAL

    def note_writers(self, at: Integers, num_bytes: int, threads: Integers) -> None:
        words, thread = _words(at, num_bytes), threads[:, None]
        self._is_written = True
        readers, writers = self._readers[words], self._writers[words]
        if ((readers != _NOBODY) & (readers != thread)).any():
            raise KernelFault("a thread writes global memory that another thread of the launch has read")
        self._writers[words] = thread
        if (((writers != _NOBODY) & (writers != thread)) | (self._writers[words] != thread)).any():
            raise KernelFault("two threads of a launch write the same global memory")


def _words(at: Integers, num_bytes: int) -> Integers:
    if num_bytes < _WORD:
        raise KernelFault("global memory is accessed in at least 4 bytes")
    words: Integers = at[:, None] // _WORD + np.arange(num_bytes // _WORD)
    return words


class GlobalMemory:
    """What a kernel can reach. Arrays keep their real addresses, so pointer arithmetic works."""

    def __init__(self) -> None:
        self._regions: list[_Region] = []

    def add(self, data: NDArray[Any]) -> int:
        """Make a contiguous array reachable; returns its address, which device memory has at a multiple of 16."""
        flat = data.reshape(-1).view(np.uint8)
        address = flat.ctypes.data
        if address % 16:
            raise ValueError("an array given to a kernel starts at a multiple of 16 bytes")
        self.add_bytes(address, flat)
        return address

    def add_bytes(self, address: int, flat: NDArray[np.uint8]) -> None:
        """The same for bytes at a known address; given twice, they count once."""
        if all((region.base, region.size) != (address, len(flat)) for region in self._regions):
            self._regions.append(_Region(address, flat))

    def load(self, addresses: Integers, width: int, count: int, threads: Integers) -> NDArray[Any]:
        """`count` numbers of `width` bytes at each address: uint[lanes, count]."""
        out = np.empty((len(addresses), count), np.dtype(f"u{width}"))
        for region, chosen in self._split(addresses, width * count, "load"):
            at = addresses[chosen] - region.base
            region.note_readers(at, width * count, threads[chosen])
            out[chosen] = region.numbers(width)[at[:, None] // width + np.arange(count)]
        return out

    def store(self, addresses: Integers, values: NDArray[Any], threads: Integers) -> None:
        """Write uint[lanes, count] at each address."""
        width, count = values.dtype.itemsize, values.shape[1]
        for region, chosen in self._split(addresses, width * count, "store"):
            at = addresses[chosen] - region.base
            region.note_writers(at, width * count, threads[chosen])
            region.numbers(width)[at[:, None] // width + np.arange(count)] = values[chosen]

    def _split(self, addresses: Integers, num_bytes: int, what: str) -> list[tuple[_Region, Any]]:
        if (addresses % num_bytes).any():
            raise KernelFault(f"misaligned {what} of {num_bytes} bytes at global {int(addresses[0]):#x}")
        found: list[tuple[_Region, Any]] = []
        left = np.ones(len(addresses), bool)
        for region in self._regions:
            inside = left & (addresses >= region.base) & (addresses + num_bytes <= region.base + region.size)
            if inside.all():
                return [(region, slice(None))]
            if inside.any():
                found.append((region, inside))
                left &= ~inside
        if left.any():
            raise KernelFault(
                f"{what} of {num_bytes} bytes outside every array, at {self._describe(addresses[left][0])}"
            )
        return found

    def _describe(self, address: int) -> str:
        nearest = min(
            self._regions, key=lambda region: min(abs(address - region.base), abs(address - region.base - region.size))
        )
        return f"offset {address - nearest.base} of an array of {nearest.size} bytes"
