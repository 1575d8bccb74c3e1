"""From wants to rows and back: `RowTask`, rows to compute for one token string, and `PendingWant`, one await in progress.

An await may take several steps: answers are kept row by row until all are there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from chatserve.decoding.samples import Sample, TopK
from chatserve.decoding.sequence import Sequence
from chatserve.decoding.wants import LogitsWant, SampleWant, ScoreWant, TopKWant, VerifyWant, Want
from chatserve.engine.sampler import Processing, SamplingPlan, SamplingResult


class RowTask:
    """Rows wanted at the last positions of one token string: a sequence's tokens and perhaps a draft behind them.

    Sequences with equal tokens share a task: it is computed once, for the `leader`, and the others adopt its KV.

    Attributes:
        members: sequences that have these tokens; the first one leads.
        draft: tokens to run behind the leader's.
        next_row: position of the next row that is still wanted.
        end: number of tokens to run in all.
        consumers: pending wants that read the rows, with the index of the sequence in each.
        first_row: position of the first wanted row.
        chunk: positions (start, stop) scheduled in the current step; empty when none are.
    """

    __slots__ = ("chunk", "consumers", "draft", "end", "first_row", "members", "next_row")

    def __init__(self, sequence: Sequence, draft: list[int], last: int) -> None:
        self.members = [sequence]
        self.draft = draft
        self.first_row = self.next_row = len(sequence) - last
        self.end = len(sequence) + len(draft)
        self.consumers: list[tuple[PendingWant, int]] = []
        self.chunk = (0, 0)

    @property
    def leader(self) -> Sequence:
        return self.members[0]

    @property
    def start(self) -> int:
        """First position to run: what the pages lack, or the next wanted row when they have it already."""
        return min(self.leader._table.num_tokens, self.next_row)

    @property
    def is_done(self) -> bool:
        return self.next_row >= self.end

    @property
    def num_computed(self) -> int:
        """Tokens of the leader whose KV is in the pages, those of the current step not counted."""
        start, stop = self.chunk
        held = self.leader._table.num_tokens
        return min(held, start) if start < stop else held

    def tokens(self, start: int, stop: int) -> list[int]:
        """Tokens at these positions, draft included."""
        length = len(self.leader)
        if stop <= length:
            return self.leader[start:stop]
        return self.leader[start:length] + self.draft[max(0, start - length) : stop - length]

    def context(self, position: int) -> list[int]:
        """Tokens up to and including `position`: what its row follows from."""
        return self.tokens(0, position + 1)


class PendingWant:
    """One want of an await in progress; subclasses say what to ask of a row and what to make of the answers."""

    __slots__ = ("asked", "num_top", "values", "want")

    def __init__(self, want: Any, num_top: int) -> None:
        self.want = want
        self.num_top = num_top
        self.values: list[Any] = [[] for _ in want.sequences]
        self.asked: list[tuple[int, int, int]] = []  # (index, place in the result, place of its alternatives)

    def ask(self, plan: SamplingPlan, row: int, index: int, offset: int) -> None:
        """Ask for what row number `row` of the step means to sequence `index`, whose offset-th row it is."""
        raise NotImplementedError

    def collect(self, result: SamplingResult) -> None:
        """Take over the answers of a step."""
        for index, place, top in self.asked:
            self.values[index].append(self.read(result, index, place, top))
        self.asked.clear()

    def read(self, result: SamplingResult, index: int, place: int, top: int) -> Any:
        raise NotImplementedError

    def answer(self) -> Any:
        """What the decoder is resumed with."""
        raise NotImplementedError

    def drafts(self) -> Iterable[list[int]]:
        """Tokens to run behind each sequence."""
        return self.want.drafts or ([] for _ in self.want.sequences)

    def _ask_alternatives(self, plan: SamplingPlan, row: int) -> int:
        return plan.add_top(row, self.num_top) if self.num_top else -1

    def _alternatives(self, result: SamplingResult, top: int) -> tuple[tuple[int, float], ...]:
        if top < 0:
            return ()
        ids, logprobs = result.top_ids[top, : self.num_top], result.top_logprobs[top, : self.num_top]
        return tuple(zip(ids.tolist(), logprobs.tolist(), strict=True))

    def _read_draw(self, result: SamplingResult, index: int, place: int, top: int) -> Sample:
        return Sample(result.draw_tokens[place], result.draw_logprobs[place], self._alternatives(result, top))


class _PendingSample(PendingWant):
    """One draw from the last row of each sequence; the counter was fixed at the await, so load cannot change it."""

    __slots__ = ("counters",)
    want: SampleWant

    def __init__(self, want: SampleWant, num_top: int) -> None:
        super().__init__(want, num_top)
        self.counters = [_next_counter(sequence) for sequence in want.sequences]

    def ask(self, plan: SamplingPlan, row: int, index: int, offset: int) -> None:
        place = plan.add_draw(row, self.want.warp, self.counters[index])
        self.asked.append((index, place, self._ask_alternatives(plan, row)))

    read = PendingWant._read_draw

    def answer(self) -> list[Sample]:
        return [samples[0] for samples in self.values]


class _PendingVerify(PendingWant):
    """A draw at every drafted position and one behind; those behind the first disagreement are dropped."""

    __slots__ = ("counters",)
    want: VerifyWant

    def __init__(self, want: VerifyWant, num_top: int) -> None:
        super().__init__(want, num_top)
        self.counters = [_next_counter(sequence) for sequence in want.sequences]

    def ask(self, plan: SamplingPlan, row: int, index: int, offset: int) -> None:
        key, epoch, position, ordinal = self.counters[index]
        counter = (key, epoch, position + offset, ordinal if offset == 0 else 0)
        place = plan.add_draw(row, self.want.warp, counter)
        self.asked.append((index, place, self._ask_alternatives(plan, row)))

    read = PendingWant._read_draw

    def answer(self) -> list[list[Sample]]:
        return [_agreed(samples, draft) for samples, draft in zip(self.values, self.drafts(), strict=True)]


class _PendingTopK(PendingWant):
    __slots__ = ()
    want: TopKWant

    def ask(self, plan: SamplingPlan, row: int, index: int, offset: int) -> None:
        self.asked.append((index, plan.add_top(row, max(self.want.k, self.num_top)), -1))

    def read(self, result: SamplingResult, index: int, place: int, top: int) -> Any:
        return result.top_ids[place], result.top_logprobs[place]

    def answer(self) -> TopK:
        width = max(self.want.k, self.num_top)
        ids = np.array([value[0][0][:width] for value in self.values]).reshape(-1, width)
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
        return np.array(self.values, np.float32)


class _PendingScore(PendingWant):
    """The log-probability of each continuation's token; the last token itself need not be run."""

    __slots__ = ()
    want: ScoreWant

    def ask(self, plan: SamplingPlan, row: int, index: int, offset: int) -> None:
        token = self.want.continuations[index][offset]
        place = plan.add_score(row, token, self.want.stage)
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

    Args:
        wants: what the decoder awaits.
        num_top: alternatives to report with each token.
    """
    pending = [_PENDING[type(want)](want, num_top) for want in wants]
    tasks: dict[Any, RowTask] = {}
    for item in pending:
        for index, (sequence, draft) in enumerate(zip(item.want.sequences, item.drafts(), strict=True)):
            _task_for(tasks, sequence, draft, item.want.last).consumers.append((item, index))
    return pending, list(tasks.values())


def _task_for(tasks: dict[Any, RowTask], sequence: Sequence, draft: list[int], last: int) -> RowTask:
    point = sequence._fork_point
    identity = point if point is not None and point.length == len(sequence) else sequence
    key = (identity, last, tuple(draft)) if draft else (identity, last)
    task = tasks.get(key)
    if task is None:
        task = tasks[key] = RowTask(sequence, draft, last)
    elif sequence not in task.members:
        leads = sequence._table.num_tokens > task.leader._table.num_tokens
        task.members.insert(0 if leads else len(task.members), sequence)
    return task


def _next_counter(sequence: Sequence) -> tuple[int, int, int, int]:
    """(key, epoch, position, ordinal) of the next draw of a sequence; counts it."""
    epoch, ordinal = sequence._counter
    sequence._counter = (epoch, ordinal + 1)
    return sequence._key, epoch, len(sequence), ordinal


def _agreed(samples: list[Sample], draft: list[int]) -> list[Sample]:
    for position, token in enumerate(draft):
        if samples[position].token != token:
            return samples[: position + 1]
    return samples
