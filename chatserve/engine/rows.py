"""From wants to rows and back: `RowTask`, rows to compute for one token string; `PendingWant`, one await in progress.

An await may take several steps: answers are kept row by row until all are there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chatserve.decoding.samples import Sample, TopK
from chatserve.decoding.sequence import Sequence
from chatserve.decoding.wants import LogitsWant, SampleWant, ScoreWant, TopKWant, VerifyWant, Want
from chatserve.engine.sampler import SamplingPlan, SamplingResult

_NO_DRAFT: list[int] = []


class RowTask:
    """Rows wanted at the last positions of one token string: a sequence's tokens and perhaps a draft behind them.

    Sequences with equal tokens share a task: it is computed once, for the `leader`, and the others adopt its KV.

    Attributes:
        leader: the sequence whose table the tokens are computed into.
        followers: further sequences that have the same tokens.
        draft: tokens to run behind the leader's.
        first_row: position of the first wanted row.
        next_row: position of the next row that is still wanted.
        end: number of tokens to run in all.
        is_raw: the rows are not to be processed.
        consumers: pending wants that read the rows, with the index of the sequence in each.
        scheduled_from: first position scheduled in the current step; None when none are.
    """

    __slots__ = (
        "consumers",
        "draft",
        "end",
        "first_row",
        "followers",
        "is_raw",
        "leader",
        "next_row",
        "scheduled_from",
    )

    def __init__(self, sequence: Sequence, draft: list[int], last: int, is_raw: bool) -> None:
        length = len(sequence._tokens)
        self.leader = sequence
        self.followers: list[Sequence] = []
        self.draft = draft
        self.is_raw = is_raw
        self.first_row = self.next_row = length - last
        self.end = length + len(draft)
        self.consumers: list[tuple[PendingWant, int]] = []
        self.scheduled_from: int | None = None

    @property
    def start(self) -> int:
        """First position to run: what the pages lack, or the next wanted row when they have it already."""
        held, next_row = self.leader._table.num_tokens, self.next_row
        return held if held < next_row else next_row

    @property
    def num_computed(self) -> int:
        """Tokens of the leader whose KV is in the pages, those of the current step not counted."""
        held = self.leader._table.num_tokens
        return held if self.scheduled_from is None else min(held, self.scheduled_from)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Tokens at these positions, draft included."""
        own = self.leader._tokens
        if stop <= len(own):
            return own[start:stop]
        return own[start:] + self.draft[max(0, start - len(own)) : stop - len(own)]

    def context(self, position: int) -> list[int]:
        """Tokens up to and including `position`: what its row follows from."""
        return self.tokens(0, position + 1)

    def join(self, sequence: Sequence) -> None:
        """Add a sequence with the same tokens; whoever has most of their KV leads."""
        if sequence is self.leader or sequence in self.followers:
            return
        if sequence._table.num_tokens > self.leader._table.num_tokens:
            sequence, self.leader = self.leader, sequence
        self.followers.append(sequence)


class PendingWant:
    """One want of an await in progress; subclasses say what to ask of a row and what to make of the answers.

    Attributes:
        values: the answers so far, for each named sequence one for each row.
        asked: what was asked in the current step: (index of the sequence, place in the result, place of alternatives).
    """

    __slots__ = ("asked", "num_top", "values", "want")

    def __init__(self, want: Any, num_top: int) -> None:
        self.want = want
        self.num_top = num_top
        self.values: list[list[Any]] = [[]] if len(want.sequences) == 1 else [[] for _ in want.sequences]
        self.asked: list[tuple[int, int, int]] = []

    def ask(self, plan: SamplingPlan, row: int, index: int, offset: int) -> None:
        """Ask for what row number `row` of the step means to sequence `index`, whose offset-th row it is."""
        raise NotImplementedError

    def collect(self, result: SamplingResult) -> None:
        """Take over the answers of a step."""
        for index, place, top in self.asked:
            self.values[index].append(self.read(result, index, place, top))
        self.asked.clear()

    def read(self, result: SamplingResult, index: int, place: int, top: int) -> Any:
        """One answer out of the step's result."""
        raise NotImplementedError

    def answer(self) -> Any:
        """What the decoder is resumed with."""
        raise NotImplementedError

    def drafts(self) -> list[list[int]]:
        """Tokens to run behind each sequence."""
        return self.want.drafts or [_NO_DRAFT] * len(self.want.sequences)

    def _ask_alternatives(self, plan: SamplingPlan, row: int) -> int:
        return plan.add_top(row, self.num_top) if self.num_top else -1

    def _alternatives(self, result: SamplingResult, top: int) -> tuple[tuple[int, float], ...]:
        if top < 0:
            return ()
        ids, logprobs = result.top_ids[top, : self.num_top], result.top_logprobs[top, : self.num_top]
        return tuple(zip(ids.tolist(), logprobs.tolist(), strict=True))


class _PendingSample(PendingWant):
    """One draw from the last row of each sequence; the counter was fixed at the await, so load cannot change it."""

    __slots__ = ("counters",)
    want: SampleWant

    def __init__(self, want: SampleWant, num_top: int) -> None:
        super().__init__(want, num_top)
        self.counters = [sequence._next_counter() for sequence in want.sequences]

    def ask(self, plan: SamplingPlan, row: int, index: int, offset: int) -> None:
        place = plan.add_draw(row, self.want.warp, self._counter(index, offset))
        self.asked.append((index, place, self._ask_alternatives(plan, row)))

    def read(self, result: SamplingResult, index: int, place: int, top: int) -> Sample:
        alternatives = self._alternatives(result, top) if top >= 0 else ()
        return Sample(result.draw_tokens[place], result.draw_logprobs[place], alternatives)

    def answer(self) -> Any:
        return [samples[0] for samples in self.values]

    def _counter(self, index: int, offset: int) -> tuple[int, int, int, int]:
        return self.counters[index]


class _PendingVerify(_PendingSample):
    """A draw at every drafted position and one behind; those behind the first disagreement are dropped."""

    __slots__ = ()

    def answer(self) -> list[list[Sample]]:
        return [_agreed(samples, draft) for samples, draft in zip(self.values, self.drafts(), strict=True)]

    def _counter(self, index: int, offset: int) -> tuple[int, int, int, int]:
        key, epoch, position, ordinal = self.counters[index]
        return key, epoch, position + offset, 0 if offset else ordinal


class _PendingTopK(PendingWant):
    __slots__ = ()
    want: TopKWant

    def ask(self, plan: SamplingPlan, row: int, index: int, offset: int) -> None:
        self.asked.append((index, plan.add_top(row, max(self.want.k, self.num_top)), -1))

    def read(self, result: SamplingResult, index: int, place: int, top: int) -> Any:
        return result.top_ids[place], result.top_logprobs[place]

    def answer(self) -> TopK:
        width = max(self.want.k, self.num_top)
        ids = np.array([value[0][0][:width] for value in self.values], np.int64).reshape(-1, width)
        logprobs = np.array([value[0][1][:width] for value in self.values], np.float32).reshape(-1, width)
        return TopK(
            ids[:, : self.want.k],
            logprobs[:, : self.want.k],
            [
                tuple(zip(row_ids[: self.num_top].tolist(), row[: self.num_top].tolist(), strict=True))
                for row_ids, row in zip(ids, logprobs, strict=True)
            ]
            if self.num_top
            else None,
        )


class _PendingLogits(PendingWant):
    __slots__ = ("warp",)
    want: LogitsWant

    def ask(self, plan: SamplingPlan, row: int, index: int, offset: int) -> None:
        self.asked.append((index, plan.add_full(row, self.want.stage, self.want.warp), -1))

    def read(self, result: SamplingResult, index: int, place: int, top: int) -> Any:
        return result.full[place]

    def answer(self) -> Any:
        return np.array(self.values, np.float32).reshape(-1, self.want.last, self.want.vocab_size)


class _PendingScore(PendingWant):
    """The log-probability of each continuation's token; the last token itself need not be run."""

    __slots__ = ()
    want: ScoreWant

    def ask(self, plan: SamplingPlan, row: int, index: int, offset: int) -> None:
        token = self.want.continuations[index][offset]
        place = plan.add_score(row, token)
        self.asked.append((index, place, self._ask_alternatives(plan, row)))

    def read(self, result: SamplingResult, index: int, place: int, top: int) -> Any:
        token = self.want.continuations[index][len(self.values[index])]
        return Sample(token, result.scores[place], self._alternatives(result, top))

    def answer(self) -> list[list[Sample]]:
        return self.values


_PENDING: dict[type[Want[Any]], type[PendingWant]] = {
    SampleWant: _PendingSample,
    VerifyWant: _PendingVerify,
    TopKWant: _PendingTopK,
    LogitsWant: _PendingLogits,
    ScoreWant: _PendingScore,
}


def expand(wants: tuple[Want[Any], ...], num_top: int) -> tuple[list[PendingWant], list[RowTask]]:
    """Pending wants and the row tasks they need; equal token strings become one task.

    Raises DecoderError when a named sequence was freed or truncated since it was named.

    Args:
        wants: what the decoder awaits.
        num_top: alternatives to report with each token.
    """
    for want in wants:
        want.check()
    pending = [_pending(want, num_top) for want in wants]
    tasks: dict[Any, RowTask] = {}
    for item in pending:
        for index, (sequence, draft) in enumerate(zip(item.want.sequences, item.drafts(), strict=True)):
            _task_for(tasks, sequence, draft, item.want).consumers.append((item, index))
    return pending, list(tasks.values())


def _pending(want: Want[Any], num_top: int) -> PendingWant:
    return _PENDING[type(want)](want, num_top if want.num_top is None else want.num_top)


def _task_for(tasks: dict[Any, RowTask], sequence: Sequence, draft: list[int], want: Want[Any]) -> RowTask:
    point = sequence._fork_point
    identity = point if point is not None and point.length == len(sequence) else sequence
    key = (identity, want.last, tuple(draft), sequence.prompt_len, want.is_raw)
    task = tasks.get(key)
    if task is None:
        task = tasks[key] = RowTask(sequence, draft, want.last, want.is_raw)
    else:
        task.join(sequence)
    return task


def _agreed(samples: list[Sample], draft: list[int]) -> list[Sample]:
    for position, token in enumerate(draft):
        if samples[position].token != token:
            return samples[: position + 1]
    return samples
