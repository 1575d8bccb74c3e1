"""The event log of the UI's streams, with readers that go and come back at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from chatserve.server.ui_log import EventLog
from tests.server.ui_events import Event, parse_event


def events(frames: bytes) -> list[Event]:
    found = [parse_event(block) for block in frames.decode().split("\n\n")[:-1]]
    return [event for event in found if event is not None]


async def take(reader: AsyncIterator[bytes], count: int) -> list[Event]:
    """The first `count` batches, as far as there are any."""
    taken: list[Event] = []
    for _ in range(count):
        try:
            taken += events(await asyncio.wait_for(anext(reader), 0.01))
        except (TimeoutError, StopAsyncIteration):
            break
    return taken


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=12))
def test_readers_that_come_back_see_every_event_once(rounds: list[tuple[int, int]]) -> None:
    """Each round appends some events and lets a new reader take some batches behind what was seen."""

    async def play() -> None:
        log, written = EventLog(10_000), 0
        seen: list[Event] = []
        for num_new, num_batches in rounds:
            for _ in range(num_new):
                written += 1
                log.append("n", written)
            assert log.has_all_after(len(seen))
            seen += await take(log.read(len(seen)), num_batches)
        log.complete()
        async for frames in log.read(len(seen)):
            seen += events(frames)
        assert [(event.id, event.data) for event in seen] == [(i, i) for i in range(1, written + 1)]

    asyncio.run(play())


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30), st.integers(0, 30), st.integers(100, 2000))
def test_only_what_was_read_is_dropped(sizes: list[int], num_read: int, max_bytes: int) -> None:
    async def play() -> None:
        log = EventLog(max_bytes)
        for size in sizes[:num_read]:
            log.append("x", "y" * size)
        frames = b""
        if num_read:
            reader = log.read(0)
            frames = await anext(reader)
            reading = asyncio.ensure_future(anext(reader))
            await asyncio.sleep(0)
        for size in sizes[num_read:]:
            log.append("x", "y" * size)
        first_kept = next(after for after in range(len(sizes) + 1) if log.has_all_after(after))
        assert first_kept <= min(num_read, len(sizes))
        unread = sum(len(frame) for frame in _frames(log, min(num_read, len(sizes)), len(sizes)))
        assert log.num_bytes <= max_bytes or log.num_bytes == unread
        assert log.is_overfull == (unread > max_bytes)
        del frames
        if num_read:
            reading.cancel()

    asyncio.run(play())


def _frames(log: EventLog, after: int, end: int) -> list[bytes]:
    return [log._joined(index, index + 1) for index in range(after, end)]


async def test_a_reader_waits_for_news_and_for_the_end() -> None:
    log = EventLog(1000)
    reader = log.read(0)
    first = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    assert not first.done()
    log.append("a", {"text": "\u2028"})
    assert await first == b'id: 1\nevent: a\ndata: {"text":"\\u2028"}\n\n'
    log.append("b", 1)
    log.append("c", 2)
    assert [event.name for event in events(await anext(reader))] == ["b", "c"]
    second = asyncio.ensure_future(anext(reader, None))
    await asyncio.sleep(0)
    log.complete()
    assert await second is None


async def test_a_later_reader_ends_the_one_before() -> None:
    log = EventLog(1000)
    log.append("a", 1)
    before = log.read(0)
    await anext(before)
    waiting = asyncio.ensure_future(anext(before, None))
    await asyncio.sleep(0)
    later = log.read(0)
    assert [event.id for event in events(await anext(later))] == [1]
    assert await waiting is None
