"""`EventLog`: the numbered events of one answer, kept for a reader who comes late or comes back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from chatserve.server.frames import encode


class EventLog:
    """Events as server-sent frames with ids from 1; one reader at a time.

    Read events are kept, oldest dropped first, as long as all together fit into `max_bytes`; unread ones always.

    Attributes:
        last_id: of the newest event; 0 before the first.
        num_read: id of the last event that the reader has taken.
        is_complete: nothing more will come.
    """

    def __init__(self, max_bytes: int) -> None:
        self.last_id = 0
        self.num_read = 0
        self.is_complete = False
        self._max_bytes = max_bytes
        self._frames: deque[bytes] = deque()
        self._num_bytes = 0
        self._reader: object = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of the events that are kept."""
        return self._num_bytes

    @property
    def is_overfull(self) -> bool:
        """Whether what nobody has read is more than may be kept."""
        return self._num_bytes > self._max_bytes

    def append(self, name: str, data: Any) -> None:
        """Add an event; `data` becomes its JSON."""
        self.last_id += 1
        frame = b"id: %d\nevent: %b\ndata: %b\n\n" % (self.last_id, name.encode(), encode(data))
        self._frames.append(frame)
        self._num_bytes += len(frame)
        self._drop_read()
        self._wake()

    def complete(self) -> None:
        """Let the reader end behind the newest event."""
        self.is_complete = True
        self._wake()

    def has_all_after(self, event_id: int) -> bool:
        """Whether everything behind this event is still kept."""
        return self.last_id - len(self._frames) <= event_id <= self.last_id

    def read(self, after: int) -> AsyncIterator[bytes]:
        """The frames behind event `after`, as they come, to the last. A later call ends what an earlier one gave."""
        self._reader = reader = object()
        self.num_read = after
        self._wake()
        return self._follow(reader)

    async def _follow(self, reader: object) -> AsyncIterator[bytes]:
        while self._reader is reader:
            if self.num_read < self.last_id:
                end = self.last_id
                yield self._joined(self.num_read, end)
                if self._reader is reader:
                    self.num_read = end
                    self._drop_read()
            elif self.is_complete:
                return
            else:
                await self._wait()

    def _joined(self, after: int, end: int) -> bytes:
        dropped = self.last_id - len(self._frames)
        return b"".join(self._frames[index - dropped] for index in range(after, end))

    def _drop_read(self) -> None:
        while self.is_overfull and self.last_id - len(self._frames) < self.num_read:
            self._num_bytes -= len(self._frames.popleft())

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
