"""Requests that arrive together are let in a few in each iteration of the event loop, in order."""

from __future__ import annotations

import asyncio
from collections import Counter

from starlette.types import Receive, Scope, Send

from chatserve.server.turnstile import Turnstile


class Entrance:
    """An app that notes in which iteration of the loop each request comes in."""

    def __init__(self) -> None:
        self.entered: list[tuple[int, int]] = []
        self.iteration = 0
        self.turnstile = Turnstile(self, at_once=4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.entered.append((scope["number"], self.iteration))

    def arrive(self, numbers: range) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._arrive({"type": "http", "number": number})) for number in numbers]

    async def _arrive(self, scope: Scope) -> None:
        async def nothing(*arguments: object) -> None: ...

        await self.turnstile(scope, nothing, nothing)  # type: ignore[arg-type]

    async def count_iterations(self, tasks: list[asyncio.Task[None]]) -> None:
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            self.iteration += 1


async def test_a_crowd() -> None:
    entrance = Entrance()
    tasks = entrance.arrive(range(50))
    await entrance.count_iterations(tasks)
    assert [number for number, _ in entrance.entered] == list(range(50))
    by_iteration = Counter(iteration for _, iteration in entrance.entered)
    assert max(by_iteration.values()) == 4
    assert len(by_iteration) == 13, "and no iteration is lost"


async def test_those_that_come_later_wait_for_the_others() -> None:
    entrance = Entrance()
    first = entrance.arrive(range(10))
    await asyncio.sleep(0)
    later = entrance.arrive(range(10, 12))
    await entrance.count_iterations([*first, *later])
    assert [number for number, _ in entrance.entered] == list(range(12))


async def test_one_that_leaves_takes_no_turn() -> None:
    entrance = Entrance()
    tasks = entrance.arrive(range(20))
    await asyncio.sleep(0)
    for task in tasks[6:9]:
        task.cancel()
    await entrance.count_iterations(tasks)
    assert [number for number, _ in entrance.entered] == [*range(6), *range(9, 20)]
    await entrance.count_iterations(entrance.arrive(range(20, 21)))
    assert entrance.entered[-1][0] == 20
