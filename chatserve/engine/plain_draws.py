"""Plain draws, the short way through a step: one token for each of some sequences that lack the KV of their last alone.

Nearly every await is one. Of the general way (tasks, chunks, partial answers: `rows` and `Scheduler`) it needs nothing:
one row for each sequence, in order, and all answers after one step. An await that does not fit, or for which room must
be made, goes the general way instead, with the same answers.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any

from chatserve.decoding.samples import Sample
from chatserve.decoding.sequence import Sequence
from chatserve.decoding.wants import SampleWant, Want
from chatserve.engine.sampler import SamplingResult
from chatserve.kv import BlockPool


def as_plain_draw(wants: tuple[Want[Any], ...]) -> SampleWant | None:
    """The want of an await that asks for one draw of each sequence it names; None: the general way.

    Each sequence must need a row of its own: none is named twice, and none has a fork with the same tokens. One that
    was freed meanwhile is left to the general way to refuse.
    """
    want = wants[0] if len(wants) == 1 else None
    if type(want) is not SampleWant:
        return None
    sequences = want.sequences
    if len(sequences) != 1 and (not sequences or len(set(sequences)) < len(sequences)):
        return None
    for sequence in sequences:
        point = sequence._fork_point
        if sequence._is_freed or (point is not None and point.length == len(sequence._tokens)):
            return None
    return want


def take_slots(sequences: list[Sequence], pool: BlockPool) -> bool:
    """Make a slot for the last token of each sequence; False, with nothing changed, when that is not all they lack or
    when the pool may have too few blocks."""
    num_closed = 0
    for sequence in sequences:
        table = sequence._table
        if table.num_tokens != len(sequence._tokens) - 1:
            return False
        if not table.num_open:
            num_closed += 1
    if num_closed and num_closed > pool.num_free:
        return False
    for sequence in sequences:
        sequence._table.extend(1)
    return True


def read_draws(result: SamplingResult) -> list[Sample]:
    """All draws of a step; those of plain draws come first, in their order."""
    fields = zip(result.draw_tokens, result.draw_logprobs, repeat(()))
    return list(map(tuple.__new__, repeat(Sample), fields))  # a third of the time that calling Sample takes
