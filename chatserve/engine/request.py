"""`Request`: one request inside the engine: its sequence group, its decoder's coroutine, and the await in progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeAlias

from chatserve.decoding.context import Context
from chatserve.decoding.errors import DecoderError
from chatserve.decoding.group import SequenceGroup
from chatserve.decoding.randomness import MASK
from chatserve.decoding.registry import Decoder
from chatserve.decoding.sequence import ForkPoint, Sequence
from chatserve.decoding.wants import SampleWant, ScoreWant, Want
from chatserve.engine.generation import Delta, GenerationRequest, PublishedToken, Usage
from chatserve.engine.output import ChoiceOutput
from chatserve.engine.plain_draws import as_plain_draw
from chatserve.engine.rows import PendingWant, RowTask, expand
from chatserve.engine.sampler import Processing
from chatserve.errors import ChatserveError

AWAITS_BETWEEN_CHECKS = 256

Listener: TypeAlias = Callable[["Delta | ChatserveError | None"], None]


class Request:
    """A sequence group with its decoder; changed on the event-loop thread only.

    Attributes:
        arrival: place in the order of arrival; the scheduler's notion of first come, first served.
        order: what the policy sorts by; smaller goes first.
        draw: the current await while it goes the short way; then there are no tasks and no pending wants.
        tasks: row tasks of the current await that are not done.
        pending: wants of the current await.
        num_sequences: most sequences the decoder said it would hold at once.
        num_rows: logits rows answered so far.
        max_rows: more rows than any sensible search asks for; ends decoders that never come to an end.
        num_top: alternatives that the client wants with each token.
        is_finished: ended, for whatever reason; everything is released.
        listener: called with each Delta, then once with None or the error that ended the request.
        next_check: number of awaits at which `check_progress` is due.
        decoder_name: of the decoder that drives it.
        decoder_package: the package of that decoder's code.
        submitted_at, admitted_at: `time.monotonic` at submission and when it first ran (None before).
    """

    def __init__(
        self,
        given: GenerationRequest,
        group: SequenceGroup,
        processing: Processing,
        num_sequences: int,
        listener: Listener,
        arrival: int,
        decoder: Decoder,
    ) -> None:
        self.given = given
        self.decoder_name = decoder.name
        self.decoder_package = decoder.package
        self.group = group
        self.processing = processing
        self.num_sequences = num_sequences
        self.listener = listener
        self.arrival = arrival
        tokens = list(given.prompt_token_ids)
        self.prompt = Sequence(group, tokens, len(tokens), (given.sampling.seed or 0) & MASK)
        self.trace: list[dict[str, Any]] | None = [] if given.return_trace else None
        self.context: Context | None = None
        self.coroutine: Any = None
        self.outputs = [
            ChoiceOutput(index, group.rules, given.sampling.top_logprobs is not None)
            for index in range(given.sampling.n)
        ]
        self.num_open = given.sampling.n  # choices that are not finished
        self.prompt_logprobs: list[PublishedToken] | None = None
        self.draw: SampleWant | None = None
        self.pending: list[PendingWant] = []
        self.tasks: list[RowTask] = []
        self.num_awaits = 0
        self.num_rows = 0
        self.max_rows = 1024 + 2 * len(tokens) + 16 * num_sequences * group.rules.max_tokens
        self.next_check = 0
        self._state: tuple[int, ...] | None = None  # of the sequences, when progress was last checked
        self.num_top = given.sampling.top_logprobs or 0
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.is_running = False  # in the scheduler's running list
        self.is_finished = False
        self.submitted_at = time.monotonic()
        self.admitted_at: float | None = None

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt.prompt_len,
            completion_tokens=sum(output.num_tokens for output in self.outputs),
            cached_tokens=self.num_cached_tokens,
            computed_tokens=self.num_computed_tokens,
        )

    def published_token_ids(self) -> list[list[int]]:
        """Tokens of each choice so far, the end token included."""
        assert self.context is not None
        return [[sample.token for sample in choice.samples] for choice in self.context._choices]

    def begin_await(self, wants: tuple[Want[Any], ...]) -> None:
        """The decoder awaits these. Raises DecoderError when a named sequence was freed or truncated meanwhile."""
        self.num_awaits = number = self.num_awaits + 1
        for want in wants:
            for sequence in want.sequences:
                sequence._last_awaited = number
        self.draw = None if self.num_top else as_plain_draw(wants)
        if self.draw is None:
            self.pending, self.tasks = expand(wants, self.num_top)

    def check_progress(self, wants: tuple[Want[Any], ...]) -> None:
        """Look whether the decoder gets anywhere; due before an await at `next_check`, and beyond `max_rows`.

        Raises DecoderError when it asked for too many rows, or for rows of the same sequences again and again. Scoring
        one text after another behind a prompt is no such thing.
        """
        if max(self.num_rows, self.num_awaits) > self.max_rows:
            raise DecoderError(
                f"the decoder asked for more than {self.max_rows} rows without coming to an end;"
                " does it append what it gets, and look at `ended`?"
            )
        state = self.group.state()
        if state == self._state and not any(isinstance(want, ScoreWant) for want in wants):
            raise DecoderError(f"{AWAITS_BETWEEN_CHECKS} awaits in which no sequence changed: was `append` forgotten?")
        self._state, self.next_check = state, self.num_awaits + AWAITS_BETWEEN_CHECKS

    def take_apart(self) -> None:
        """Let the current await go the general way."""
        if self.draw is not None:
            self.pending, self.tasks = expand((self.draw,), self.num_top)
            self.draw = None

    def named(self) -> set[Sequence]:
        """Sequences that the rest of the current await needs."""
        if self.draw is not None:
            return set(self.draw.sequences)
        return {member for task in self.tasks for member in (task.leader, *task.followers)}

    def num_blocks_lacking(self) -> int:
        """Blocks that its current await still has to take, counting what forks share once, and one more for each
        further sequence that the decoder may hold."""
        pool = self.group.pool
        shared: set[ForkPoint] = set()
        ends = [(task.leader, task.end) for task in self.tasks]
        if self.draw is not None:
            ends = [(sequence, len(sequence)) for sequence in self.draw.sequences]
        total = max(0, self.num_sequences - len(ends))
        for leader, end in ends:
            held = leader._table.num_blocks
            lacking = pool.blocks_for(end) - held
            if lacking > 0:
                total += lacking - max(0, _num_shared(leader, shared) // pool.block_size - held)
        return total


def _num_shared(sequence: Sequence, shared: set[ForkPoint]) -> int:
    """Tokens that the sequence has in common with those that left fork points in `shared`; leaves its own."""
    point = sequence._fork_point
    while point is not None:
        if point in shared:
            return point.length
        shared.add(point)
        point = point.before
    return 0
