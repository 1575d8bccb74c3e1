"""Awaitables: what a decoder asks of the engine, and `Gather`, which joins the wants of several coroutines.

A decoder is driven with `send`: it yields a tuple of wants and is resumed with the list of their answers once all of
them are there. Nothing else may be yielded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

from chatserve.decoding.errors import DecoderError
from chatserve.decoding.sequence import Sequence

Answer = TypeVar("Answer")


class Warp(NamedTuple):
    """How one draw reshapes the processed distribution (see `Sampling` for the ranges)."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


class Want(Generic[Answer]):
    """One awaitable request for rows: at which positions of which sequences, and what to make of each row.

    Attributes:
        sequences: the named sequences, in order; the same one may be named more than once.
        drafts: tokens to run behind each sequence without appending them; None for most wants.
        num_top: alternatives wanted with each token; None: as many as the request asked for.
        is_raw: the rows are wanted as the model gives them, unprocessed.
        last: rows wanted for each sequence before its draft's rows: those of its last `last` positions.
    """

    __slots__ = ("drafts", "is_awaited", "is_raw", "last", "num_top", "sequences")

    def __init__(self, sequences: list[Sequence], last: int = 1, drafts: list[list[int]] | None = None) -> None:
        self.sequences = sequences
        self.last = last
        self.drafts = drafts
        self.num_top: int | None = None
        self.is_raw = False
        self.is_awaited = False

    def __await__(self) -> Generator[tuple[Want[Any], ...], list[Any], Answer]:
        if self.is_awaited:
            raise DecoderError("this was awaited before; call the context again for new rows")
        self.is_awaited = True
        answers = yield (self,)
        return answers[0]  # type: ignore[no-any-return]

    def check(self) -> None:
        """Raise DecoderError if a named sequence has changed since the call so that the rows no longer exist."""
        for sequence in self.sequences:
            if sequence._is_freed:
                raise DecoderError("a sequence was freed between naming it and awaiting its rows")
            if len(sequence._tokens) < self.last:
                raise DecoderError("a sequence was truncated between naming it and awaiting its rows")
        if self.drafts is None:
            return
        for sequence, draft in zip(self.sequences, self.drafts, strict=False):
            if len(sequence) + len(draft) > sequence._group.rules.max_len:
                raise DecoderError("a sequence grew between naming it and awaiting its rows; the context is too short")

    def __iter__(self) -> Generator[Any, Any, Any]:
        raise DecoderError("forgot `await` before a call of the context")


class SampleWant(Want[Any]):
    """Draw one token for each named sequence."""

    __slots__ = ("warp",)

    def __init__(self, sequences: list[Sequence], warp: Warp) -> None:
        super().__init__(sequences)
        self.warp = warp


class VerifyWant(Want[Any]):
    """Draw along each draft while the draws agree with it, and one more."""

    __slots__ = ("warp",)

    def __init__(self, sequences: list[Sequence], drafts: list[list[int]], warp: Warp) -> None:
        super().__init__(sequences, drafts=drafts)
        self.warp = warp


class TopKWant(Want[Any]):
    """The k best next tokens of each sequence."""

    __slots__ = ("k",)

    def __init__(self, sequences: list[Sequence], k: int) -> None:
        super().__init__(sequences)
        self.k = k


class LogitsWant(Want[Any]):
    """Full rows of log-probabilities."""

    __slots__ = ("stage", "vocab_size", "warp")

    def __init__(self, sequences: list[Sequence], last: int, stage: str, warp: Warp, vocab_size: int) -> None:
        super().__init__(sequences, last)
        self.vocab_size = vocab_size
        self.stage = stage
        self.warp = warp
        self.is_raw = stage == "raw"


class ScoreWant(Want[Any]):
    """Log-probabilities of given continuations."""

    __slots__ = ("continuations",)

    def __init__(self, sequences: list[Sequence], continuations: list[list[int]], stage: str) -> None:
        super().__init__(sequences, drafts=[tokens[:-1] for tokens in continuations])
        self.continuations = continuations
        self.is_raw = stage == "raw"


def checked_wants(yielded: object) -> tuple[Want[Any], ...]:
    """What a coroutine yielded, if it is wants of ours; raises DecoderError for anything foreign."""
    if type(yielded) is tuple:
        for want in yielded:
            if not isinstance(want, Want):
                break
        else:
            return yielded
    if hasattr(yielded, "cancel"):
        yielded.cancel()
    raise DecoderError(
        f"a decoder awaited {type(yielded).__name__}, which is not of its context;"
        " it is stepped by the engine, not by asyncio: await only calls of ctx"
    )


async def _await(awaitable: Awaitable[Answer]) -> Answer:
    return await awaitable


class Gather:
    """Runs coroutines in lockstep: their wants join one await, all are resumed together, in order.

    So what a decoder sees never depends on the load. Nests. The first error closes the other coroutines and goes up.
    """

    def __init__(self, awaitables: tuple[Awaitable[Any], ...]) -> None:
        self._coroutines = [item if isinstance(item, Coroutine) else _await(item) for item in awaitables]

    def __await__(self) -> Generator[tuple[Want[Any], ...], list[Any], list[Any]]:
        results: list[Any] = [None] * len(self._coroutines)
        answers: dict[int, list[Any] | None] = dict.fromkeys(range(len(self._coroutines)))
        try:
            while answers:
                asked = self._resume(answers, results)
                if not asked:
                    break
                received = yield tuple(want for wants in asked.values() for want in wants)
                answers = _deal(asked, received)
        finally:
            for coroutine in self._coroutines:
                with suppress(Exception):  # one that refuses to close must not keep the others open
                    coroutine.close()
        return results

    def _resume(self, answers: dict[int, list[Any] | None], results: list[Any]) -> dict[int, tuple[Want[Any], ...]]:
        asked: dict[int, tuple[Want[Any], ...]] = {}
        for index, answer in answers.items():
            try:
                asked[index] = checked_wants(self._coroutines[index].send(answer))
            except StopIteration as stop:
                results[index] = stop.value
        return asked


def _deal(asked: dict[int, tuple[Want[Any], ...]], received: list[Any]) -> dict[int, list[Any] | None]:
    start, dealt = 0, {}
    for index, wants in asked.items():
        dealt[index] = received[start : start + len(wants)]
        start += len(wants)
    return dealt  # type: ignore[return-value]
