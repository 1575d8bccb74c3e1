"""`SharedMemory`: words shared by a thread block, with checks for uninitialised reads, races and copies in flight."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.ptx.faults import KernelFault

Integers = NDArray[np.int64]
_WORD = 4
_NOBODY, _SEVERAL = -1, -2


class SharedMemory:
    """Shared memory of some thread blocks, side by side.

    A word that one lane writes and another touches without a barrier in between is a race, also when both write the
    same value. Barriers advance the block's epoch; each word remembers who read and wrote it in which epoch.

    Args:
        num_blocks: thread blocks.
        num_bytes: of each.
    """

    def __init__(self, num_blocks: int, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        shape = (num_blocks, -(-num_bytes // _WORD))
        self._data = np.zeros(shape, np.uint32)
        self._is_initialised = np.zeros(shape, bool)
        self._epochs = np.zeros(num_blocks, np.int64)
        self._writers, self._readers = np.full(shape, _NOBODY), np.full(shape, _NOBODY)
        self._write_epochs, self._read_epochs = np.full(shape, -1), np.full(shape, -1)
        self._is_in_flight = np.zeros(shape, bool)
        self._copies: list[tuple[Integers, Integers, Integers, NDArray[np.uint32]]] = []

    def load(self, blocks: Integers, addresses: Integers, count: int, lanes: Integers) -> NDArray[np.uint32]:
        """`count` words at each byte address: uint32[lanes, count]."""
        at = blocks[:, None], self._words(addresses, count, "load")
        lane = lanes[:, None]
        self._check_not_in_flight(at)
        if not self._is_initialised[at].all():
            raise KernelFault("a lane reads shared memory that nobody has written")
        epoch = self._epochs[at[0]]
        if ((self._write_epochs[at] == epoch) & (self._writers[at] != lane)).any():
            raise KernelFault("race: a lane reads shared memory that another wrote since the last barrier")
        before = np.where(self._read_epochs[at] == epoch, self._readers[at], _NOBODY)
        self._read_epochs[at] = epoch
        self._readers[at] = lane
        shared = (self._readers[at] != lane) | ((before != _NOBODY) & (before != lane))
        rows = np.broadcast_to(at[0], shared.shape)
        self._readers[rows[shared], at[1][shared]] = _SEVERAL
        return self._data[at]

    def store(self, blocks: Integers, addresses: Integers, values: NDArray[np.uint32], lanes: Integers) -> None:
        """Write uint32[lanes, count] at each byte address."""
        at = blocks[:, None], self._words(addresses, values.shape[1], "store")
        self._claim(at, lanes[:, None])
        self._data[at] = values
        self._is_initialised[at] = True

    def start_copies(self, blocks: Integers, addresses: Integers, values: NDArray[np.uint32], lanes: Integers) -> None:
        """Like `store`, but what arrives may be read only after `finish_copies` of the same lane."""
        words = self._words(addresses, values.shape[1], "asynchronous copy")
        at = blocks[:, None], words
        self._claim(at, lanes[:, None])
        self._is_in_flight[at] = True
        self._copies.append((blocks, words, lanes, values))

    def finish_copies(self, blocks: Integers, lanes: Integers) -> None:
        """Copies started by the lanes have arrived; other lanes see them after a barrier."""
        finishing = set(zip(blocks.tolist(), lanes.tolist(), strict=True))
        waiting = []
        for copy_blocks, words, copy_lanes, values in self._copies:
            pairs = zip(copy_blocks.tolist(), copy_lanes.tolist(), strict=True)
            done = np.array([pair in finishing for pair in pairs], bool)
            at = copy_blocks[done][:, None], words[done]
            self._data[at] = values[done]
            self._is_in_flight[at], self._is_initialised[at] = False, True
            self._writers[at], self._write_epochs[at] = copy_lanes[done][:, None], self._epochs[at[0]]
            if not done.all():
                waiting.append((copy_blocks[~done], words[~done], copy_lanes[~done], values[~done]))
        self._copies = waiting

    def pass_barrier(self, blocks: Integers) -> None:
        """All lanes of the blocks have met."""
        self._epochs[blocks] += 1

    def check_finished(self) -> None:
        """At the end of the kernel no copy may be under way."""
        if self._copies:
            raise KernelFault("the kernel ends while copies to shared memory are in flight")

    def _words(self, addresses: Integers, count: int, what: str) -> Integers:
        if (addresses % (_WORD * count)).any():
            raise KernelFault(f"misaligned {what} of {_WORD * count} bytes in shared memory")
        outside = (addresses < 0) | (addresses + _WORD * count > self._num_bytes)
        if outside.any():
            where = int(addresses[outside][0])
            raise KernelFault(f"{what} outside shared memory: byte {where} of {self._num_bytes}")
        words: Integers = addresses[:, None] // _WORD + np.arange(count)
        return words

    def _check_not_in_flight(self, at: Any) -> None:
        if self._is_in_flight[at].any():
            raise KernelFault("shared memory is touched while a copy to it is in flight")

    def _claim(self, at: Any, lane: Integers) -> None:
        self._check_not_in_flight(at)
        epoch = self._epochs[at[0]]
        if ((self._write_epochs[at] == epoch) & (self._writers[at] != lane)).any():
            raise KernelFault("race: two lanes write the same shared memory without a barrier")
        if ((self._read_epochs[at] == epoch) & (self._readers[at] != lane)).any():
            raise KernelFault("race: a lane writes shared memory that another read since the last barrier")
        self._write_epochs[at] = epoch
        self._writers[at] = lane
        if (self._writers[at] != lane).any():
            raise KernelFault("race: two lanes write the same shared memory in one instruction")
