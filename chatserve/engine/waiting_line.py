"""`WaitingLine`: the requests that do not run, in the order in which they will."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from chatserve.engine.policy import Policy
from chatserve.engine.request import Request


class WaitingLine:
    """Preempted requests lead, so that none is admitted while one of them waits; each part is in the policy's order."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._preempted: list[Request] = []
        self._new: list[Request] = []

    def __len__(self) -> int:
        return len(self._preempted) + len(self._new)

    def __iter__(self) -> Iterator[Request]:
        yield from self._preempted
        yield from self._new

    @property
    def num_preempted(self) -> int:
        return len(self._preempted)

    def add(self, request: Request) -> None:
        """A request that has never run."""
        insort(self._new, request, key=self._policy.rank)

    def add_preempted(self, request: Request) -> None:
        insort(self._preempted, request, key=self._policy.rank)

    def remove(self, request: Request) -> None:
        """Forget a request that has ended, if it is here."""
        for part in (self._preempted, self._new):
            if request in part:
                part.remove(request)

    def first(self) -> Request:
        """The one whose turn is next; there is one."""
        return (self._preempted or self._new)[0]

    def pop_first(self) -> Request:
        return (self._preempted or self._new).pop(0)

    def reorder(self) -> None:
        """Put everybody in their places again: ranks may have changed."""
        self._preempted.sort(key=self._policy.rank)
        self._new.sort(key=self._policy.rank)
