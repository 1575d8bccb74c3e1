"""`Context`: what a decoder can ask for. Awaitables join everybody else's batch; the rest is immediate."""

from __future__ import annotations

import math
import operator
from collections.abc import Awaitable, Iterable
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from chatserve.decoding.choice import Choice
from chatserve.decoding.errors import DecoderError
from chatserve.decoding.group import SequenceGroup
from chatserve.decoding.samples import Sample, TopK
from chatserve.decoding.sampling import Sampling
from chatserve.decoding.sequence import Sequence, as_token
from chatserve.decoding.wants import Gather, LogitsWant, SampleWant, ScoreWant, TopKWant, VerifyWant, Warp
from chatserve.errors import ContextLengthError

Stage: TypeAlias = Literal["raw", "processed", "warped"]
_STAGES = ("raw", "processed", "warped")


class Host(Protocol):
    """What a context needs of the engine."""

    def draw(self, sequence: Sequence, logits: NDArray[np.float32], warp: Warp) -> Sample: ...

    def new_sequence(self, tokens: list[int], parent: Sequence | None) -> Sequence: ...

    def prefix(self, name: str) -> Sequence: ...


class Context:
    """The engine as one request's decoder sees it.

    Arguments are checked at the call. All awaits of a step are answered together, once all their rows are there.

    Attributes:
        n: choices the client asked for; the only source of their number.
        max_tokens: most tokens a hypothesis may generate.
        end_tokens: tokens that end a hypothesis.
        sampling: the request's sampling parameters.
    """

    def __init__(
        self, group: SequenceGroup, sampling: Sampling, host: Host, trace: list[dict[str, Any]] | None
    ) -> None:
        """For the engine."""
        self._group = group
        self._host = host
        self._trace = trace
        top_k = min(sampling.top_k, group.rules.vocab_size)
        self._warp = Warp(sampling.temperature, top_k, sampling.top_p, sampling.min_p)
        self._choices = [Choice(index) for index in range(sampling.n)]
        self._dirty: dict[Choice, None] = {}
        self.sampling = sampling
        self.n = sampling.n
        self.max_tokens = group.rules.max_tokens
        self.end_tokens = tuple(sorted(group.rules.end_token_ids))

    # awaitables

    def sample(
        self,
        seqs: Iterable[Sequence],
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
    ) -> Awaitable[list[Sample]]:
        """One token for each named sequence, by the request's sampling parameters or these overrides; appends nothing.

        A sequence named k times gets k independent draws from one row.
        """
        has_overrides = not (temperature is top_k is top_p is min_p is None)
        warp = self._warp_with(temperature, top_k, top_p, min_p) if has_overrides else self._warp
        return SampleWant(self._checked(seqs), warp)

    def verify(self, seqs: Iterable[Sequence], drafts: Iterable[Iterable[int]]) -> Awaitable[list[list[Sample]]]:
        """Draws along each draft while they agree with it, and one more, as if each had been sampled in turn.

        Appends nothing; the KV of the agreed tokens is kept, so appending the answer costs nothing.
        """
        sequences = self._checked(seqs)
        if len(set(sequences)) != len(sequences):
            raise DecoderError("verify: a sequence is named twice")
        return VerifyWant(sequences, self._checked_drafts(drafts, sequences), self._warp)

    def topk(self, seqs: Iterable[Sequence], k: int) -> Awaitable[TopK]:
        """The k best next tokens of each sequence, stage *processed*; all tokens when there are fewer than k."""
        size = self._group.rules.vocab_size
        return TopKWant(self._checked(seqs), min(_integer("topk: k", k, 1), size))

    def logits(
        self, seqs: Iterable[Sequence], last: int = 1, stage: Stage = "processed"
    ) -> Awaitable[NDArray[np.float32]]:
        """Log-probabilities float32[len(seqs), last, vocab_size] for the last `last` positions of each sequence.

        Stage *raw* is the model's, *processed* has penalties, bias and forbidden tokens, *warped* temperature and
        filters too. Each position is processed as if only the tokens before it were there.
        """
        sequences = self._checked(seqs)
        if stage not in _STAGES:
            raise DecoderError(f"logits: stage is {stage!r}, allowed are {', '.join(_STAGES)}")
        shortest = min((len(sequence) for sequence in sequences), default=1)
        num_rows = _integer("logits: last", last, 1, shortest)
        return LogitsWant(sequences, num_rows, stage, self._warp, self._group.rules.vocab_size)

    def score(
        self, seqs: Iterable[Sequence], continuations: Iterable[Iterable[int]], stage: Stage = "processed"
    ) -> Awaitable[list[list[Sample]]]:
        """The given tokens with their log-probabilities, each as if those before were appended; changes nothing."""
        sequences = self._checked(seqs)
        if stage not in ("raw", "processed"):
            raise DecoderError(f"score: stage is {stage!r}, allowed are raw, processed")
        checked = self._checked_drafts(continuations, sequences)
        if any(not tokens for tokens in checked):
            raise DecoderError("score: a continuation is empty")
        return ScoreWant(sequences, checked, stage)

    def gather(self, *awaitables: Awaitable[Any]) -> Awaitable[list[Any]]:
        """Run sub-searches in lockstep and answer their results in order; their rows join one batch."""
        return Gather(awaitables)

    # immediate

    def draw(self, seq: Sequence, logits: NDArray[np.float32]) -> Sample:
        """Draw from a row of raw logits float32[vocab_size] that the decoder made, through the sequence's processors,
        filters and random stream."""
        self._checked([seq])
        row = np.array(logits, np.float32)
        if row.shape != (self._group.rules.vocab_size,):
            raise DecoderError(f"draw: logits have shape {row.shape}, wanted is ({self._group.rules.vocab_size},)")
        if np.isnan(row).any() or not np.isfinite(row.max()):
            raise DecoderError("draw: logits hold NaN, +inf, or forbid every token")
        return self._host.draw(seq, row, self._warp)

    def sequence(self, tokens: Iterable[int], parent: Sequence | None = None) -> Sequence:
        """A new prompt: these tokens, or all of `parent` (whose KV is shared) and then these, all of it prompt."""
        checked = self._checked_tokens([tokens], 1)[0]
        if parent is not None:
            self._checked([parent])
        elif not checked:
            raise DecoderError("sequence: a prompt needs at least one token")
        length = len(checked) + (len(parent) if parent is not None else 0)
        if length >= self._group.rules.max_len:
            param = "prompt" if parent is not None else "decoder_params"  # what is no prompt was a parameter
            limit = self._group.rules.max_len
            raise ContextLengthError(f"{param}: {length} tokens leave no room in the context of {limit}", param=param)
        return self._host.new_sequence(checked, parent)

    def prefix(self, name: str) -> Sequence:
        """The request's own fork of a registered prefix, all of it prompt; its KV is shared."""
        return self._host.prefix(name)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, no special tokens added."""
        return self._group.rules.vocabulary.encode(text)

    def publish(self, seq: Sequence, choice: int = 0, length: int | None = None) -> None:
        """Choice `choice` is this sequence, up to `length` generated tokens (None: all).

        Copies the tokens, streams what is new, refuses to take anything back, and finishes the choice when the
        sequence has ended and its end is published. An equal or shorter prefix changes nothing.
        """
        if seq._group is not self._group:
            raise DecoderError("publish: the sequence belongs to another request")
        published = self._choices[choice] if 0 <= choice < self.n else self._choice(choice)
        published.publish(seq, length)
        self._dirty[published] = None

    def finish(self, choice: int = 0, reason: Literal["stop", "length"] = "stop") -> None:
        """End a choice with what is published: only for stop rules of the decoder's own."""
        published = self._choice(choice)
        if reason not in ("stop", "length"):
            raise DecoderError(f"finish: reason is {reason!r}, allowed are 'stop' and 'length'")
        published.finish(reason)
        self._dirty[published] = None

    def trace(self, **data: Any) -> None:
        """Record a step of the search, of values that JSON knows; kept when the request asked for it."""
        if self._trace is None:
            return
        try:
            record = msgspec.json.decode(msgspec.json.encode(data))  # a copy, whatever becomes of the values
        except Exception as error:  # whatever strange values raise
            raise DecoderError(f"trace: {error}; give numbers, texts, lists and dictionaries") from None
        self._trace.append(record)
        if not self._dirty:  # so that it is sent although nothing was published
            self._dirty.update(dict.fromkeys([c for c in self._choices if c.finish_reason is None][:1]))

    # checks

    def _choice(self, index: int) -> Choice:
        if not 0 <= index < self.n:
            raise DecoderError(f"choice {index}: the request has choices 0 to {self.n - 1}")
        return self._choices[index]

    def _checked(self, seqs: Iterable[Sequence]) -> list[Sequence]:
        if isinstance(seqs, Sequence):
            raise DecoderError("name sequences as a list, such as [seq]")
        sequences, group = list(seqs), self._group
        if group.is_closed:
            return sequences  # awaiting after the end must yield: a decoder that swallows errors would spin for ever
        for sequence in sequences:
            if not isinstance(sequence, Sequence) or sequence._group is not group:
                raise DecoderError("named sequences must be Sequences of this request")
            if sequence._is_freed:
                raise DecoderError("a named sequence was freed")
        return sequences

    def _checked_tokens(self, lists: Iterable[Iterable[int]], count: int) -> list[list[int]]:
        checked = [[as_token(token) for token in tokens] for tokens in lists]
        if len(checked) != count:
            raise DecoderError(f"{len(checked)} token lists for {count} sequences")
        size = self._group.rules.vocab_size
        for tokens in checked:
            if tokens and not 0 <= min(tokens) <= max(tokens) < size:
                raise DecoderError(f"a token is not in the vocabulary (0 to {size - 1})")
        return checked

    def _checked_drafts(self, lists: Iterable[Iterable[int]], sequences: list[Sequence]) -> list[list[int]]:
        drafts = self._checked_tokens(lists, len(sequences))
        for sequence, draft in zip(sequences, drafts, strict=True):
            if len(sequence) + len(draft) > self._group.rules.max_len:
                raise DecoderError(
                    f"{len(sequence)} tokens and {len(draft)} behind them exceed the context of"
                    f" {self._group.rules.max_len}"
                )
        return drafts

    def _warp_with(
        self, temperature: float | None, top_k: int | None, top_p: float | None, min_p: float | None
    ) -> Warp:
        base = self._warp
        return Warp(
            base.temperature if temperature is None else _number("temperature", temperature, 0, math.inf),
            base.top_k if top_k is None else min(_integer("sample: top_k", top_k, 0), self._group.rules.vocab_size),
            base.top_p if top_p is None else _number("top_p", top_p, 0, 1, excluded=0),
            base.min_p if min_p is None else _number("min_p", min_p, 0, 1),
        )


def _integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """The value as an int; raises DecoderError when it is none or out of range."""
    try:
        number = operator.index(value)
    except TypeError:
        raise DecoderError(f"{name} is {value!r}, must be an integer") from None
    if number < low or (high is not None and number > high):
        raise DecoderError(f"{name} is {number}, allowed are {low} to {'any' if high is None else high}")
    return number


def _number(name: str, value: Any, low: float, high: float, excluded: float | None = None) -> float:
    """The value as a finite float; raises DecoderError when it is none or out of range."""
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high or value == excluded:
        raise DecoderError(f"sample: {name} is {value!r}, must be a number from {low} to {high}")
    return float(value)
