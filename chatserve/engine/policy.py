"""Scheduling policies: who is served first, and so who gives way first when blocks run out."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from chatserve.config import PolicyName
from chatserve.engine.request import Request

Rank: TypeAlias = tuple[float, ...]

_MAX_OVERTAKEN = 64
_WEIGHT_OF_NEWEST = 0.05


class Policy(Protocol):
    """An order over requests. Smaller ranks are admitted first; the largest rank of those running is preempted first.

    Attributes:
        is_static: a request's rank never changes, so what is in order stays in order.
    """

    is_static: bool

    def rank(self, request: Request) -> Rank:
        """The request's place; two requests never have the same."""

    def learn(self, request: Request) -> None:
        """Take note of a request that has finished."""


class FirstComeFirstServed:
    """By arrival (PagedAttention, section 4.5)."""

    is_static = True

    def rank(self, request: Request) -> Rank:
        return (request.arrival,)

    def learn(self, request: Request) -> None:
        """Nothing to learn."""


class ByPriority:
    """By the priority that the client gave, smaller first, then by arrival.

    It decides who is admitted and who gives way; a newcomer does not push out a running request of a lower priority as
    long as there are blocks for it.
    """

    is_static = True

    def rank(self, request: Request) -> Rank:
        return (request.given.priority, request.arrival)

    def learn(self, request: Request) -> None:
        """Nothing to learn."""


class ShortestRemaining:
    """By the tokens that are predicted to be missing, so that short answers do not wait behind long ones.

    An answer is predicted to be as long as the finished ones were (a running mean), once it is longer than that as long
    as its client allows. No request is overtaken for ever: one that arrived more than `max_overtaken` requests ago goes
    before all that are younger than that.
    """

    is_static = False

    def __init__(self, max_overtaken: int = _MAX_OVERTAKEN) -> None:
        self._max_overtaken = max_overtaken
        self._mean_length: float | None = None
        self._newest = 0

    def rank(self, request: Request) -> Rank:
        self._newest = max(self._newest, request.arrival)
        if self._newest - request.arrival > self._max_overtaken:
            return (0.0, 0.0, request.arrival)
        return (1.0, self._remaining(request), request.arrival)

    def learn(self, request: Request) -> None:
        length = _longest_answer(request)
        if self._mean_length is None:
            self._mean_length = length
        self._mean_length += _WEIGHT_OF_NEWEST * (length - self._mean_length)

    def _remaining(self, request: Request) -> float:
        most = request.group.rules.max_tokens
        generated = _longest_answer(request)
        expected = min(most, self._mean_length) if self._mean_length is not None else most
        return (expected if generated < expected else most) - generated


def make_policy(name: PolicyName) -> Policy:
    """The policy of this name."""
    policies: dict[PolicyName, type[FirstComeFirstServed | ByPriority | ShortestRemaining]] = {
        "fcfs": FirstComeFirstServed,
        "priority": ByPriority,
        "shortest-remaining": ShortestRemaining,
    }
    return policies[name]()


def _longest_answer(request: Request) -> float:
    """Tokens of the request's longest answer so far; search decoders publish theirs late, others free them early."""
    held = max((sequence.num_generated for sequence in request.group.live), default=0)
    return float(max([held, *(output.num_tokens for output in request.outputs)]))
