"""`Sequence`: a token list with KV behind it, the thing decoders fork, append to and free."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from threading import get_ident
from typing import TYPE_CHECKING, overload

from chatserve.decoding.errors import DecoderError
from chatserve.decoding.randomness import derive_seed
from chatserve.decoding.samples import Sample
from chatserve.kv import BlockTable, IndexedBlock

if TYPE_CHECKING:
    from chatserve.decoding.group import SequenceGroup


class ForkPoint:
    """A mark that everyone who holds it has the same first `length` tokens.

    Forks of a sequence whose KV is not there (not yet computed, or given up under pressure) find each other through
    it: the `leader` computes the common part once and the others adopt its blocks.
    """

    __slots__ = ("before", "leader", "length")

    def __init__(self, length: int, before: ForkPoint | None) -> None:
        self.length = length
        self.before = before
        self.leader: Sequence | None = None


class Sequence:
    """Prompt and generated tokens of one hypothesis, owned by the decoder that got or made it.

    Operations only edit the token list; the engine provides KV when the sequence is next awaited, so a decoder never
    sees "out of memory". Hash and equality are by identity. After `free` the record stays readable and publishable.

    Attributes:
        prompt_len: tokens that are not part of the answer.
        ended: "stop" or "length" once this hypothesis has met an end token, a stop string or its length, else None.
        logprob: sum of the log-probabilities of the generated tokens; forced tokens count 0.
    """

    __slots__ = (
        "_ahead",
        "_epoch",
        "_fork_point",
        "_group",
        "_indexed",
        "_is_freed",
        "_key",
        "_last_awaited",
        "_led",
        "_num_forks",
        "_num_given_up",
        "_ordinal",
        "_samples",
        "_table",
        "_tokens",
        "_version",
        "ended",
        "logprob",
        "prompt_len",
    )

    def __init__(self, group: SequenceGroup, tokens: list[int], prompt_len: int, key: int) -> None:
        """For the engine; decoders use `fork` and `Context.sequence`."""
        self._group = group
        self._tokens = tokens
        self._samples: list[Sample] = []
        self._table = BlockTable(group.pool)
        self._ahead: list[int] = []  # tokens behind ours whose KV is in the table (verified or truncated drafts)
        self._fork_point: ForkPoint | None = None
        self._indexed: IndexedBlock | None = None  # our last full block in the prefix index
        self._led: list[ForkPoint] = []
        self._num_given_up = 0  # tokens whose KV was there once, at most
        self._key = key
        self._num_forks = 0
        self._epoch = 0  # how often draws were taken back
        self._ordinal = 0  # draws at this position
        self._version = 0  # grows when tokens are taken back
        self._is_freed = False
        self.ended: str | None = None
        self._last_awaited = 0
        self.logprob = 0.0
        self.prompt_len = prompt_len
        group.register(self)

    # reading: allowed for ever

    def __len__(self) -> int:
        return len(self._tokens)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._tokens[index]

    @property
    def tokens(self) -> list[int]:
        """Prompt and generated tokens (a copy)."""
        return self._tokens[:]

    @property
    def generated(self) -> list[int]:
        """Generated tokens, the end token included (a copy)."""
        return self._tokens[self.prompt_len :]

    @property
    def samples(self) -> list[Sample]:
        """Generated tokens with their log-probabilities (a copy)."""
        return self._samples[:]

    @property
    def num_generated(self) -> int:
        """Number of generated tokens, the end token included."""
        return len(self._samples)

    @property
    def mean_logprob(self) -> float:
        """`logprob` per generated token; 0 when nothing was generated."""
        return self.logprob / len(self._samples) if self._samples else 0.0

    @property
    def text(self) -> str:
        """Text of the generated part, cut at the earliest stop string."""
        return self._group.rules.text_of(self.generated)

    @property
    def is_freed(self) -> bool:
        return self._is_freed

    # changing: until free

    def fork(self) -> Sequence:
        """A second hypothesis with the same tokens: shares all KV, has a random stream of its own."""
        self._check_usable("fork")
        self._num_forks += 1
        child = Sequence(self._group, self._tokens[:], self.prompt_len, derive_seed(self._key, self._num_forks))
        child._samples = self._samples[:]
        child.logprob, child.ended = self.logprob, self.ended
        child._share_kv(self)
        return child

    def append(self, items: Sample | int | Iterable[Sample | int]) -> str | None:
        """Add generated tokens, up to and including one that ends this hypothesis, and answer `ended`.

        Raises DecoderError when it had ended before, was freed, or a token is not in the vocabulary.
        """
        if self._is_freed or self._group.is_closed or self.ended or get_ident() != self._group.thread:
            self._refuse_append()
        if type(items) is Sample:  # by far the most frequent
            return self._append_one(items)
        for item in (items,) if isinstance(items, Sample) or not isinstance(items, Iterable) else items:
            if self._append_one(item):
                break
        return self.ended

    def truncate(self, length: int) -> None:
        """Take generated tokens back until `length` tokens (prompt included) are left; un-ends the hypothesis.

        A draw after taking back drawn tokens is a fresh one. Raises DecoderError outside prompt_len..len.
        """
        self._check_usable("truncate")
        if not self.prompt_len <= length <= len(self._tokens):
            raise DecoderError(f"truncate to {length}: allowed are {self.prompt_len} to {len(self._tokens)}")
        removed = self._samples[length - self.prompt_len :]
        if not removed:
            return
        self._epoch += any(sample.logprob is not None for sample in removed)
        self._ordinal = 0
        self._version += 1
        self._ahead = (self._tokens[length:] + self._ahead)[: max(0, self._table.num_tokens - length)]
        del self._tokens[length:], self._samples[length - self.prompt_len :]
        self.logprob -= sum(sample.logprob or 0.0 for sample in removed)
        self.ended = None
        self._drop_fork_points(length)
        self._trim_indexed(length)

    def free(self) -> None:
        """Let the KV go. The record stays readable and publishable; anything else raises from now on."""
        self._check_usable("free")
        self._release()

    def __enter__(self) -> Sequence:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self._is_freed:
            self._release()

    # for the engine

    def _append_one(self, item: Sample | int) -> str | None:
        sample = item if isinstance(item, Sample) else Sample(item)
        token, rules = sample.token, self._group.rules
        if type(token) is not int:
            sample = sample._replace(token=as_token(token))
            token = sample.token
        if not 0 <= token < rules.vocab_size:
            raise DecoderError(f"token {token} is not in the vocabulary (0 to {rules.vocab_size - 1})")
        if self._ahead:
            self._keep_ahead(token)
        self._tokens.append(token)
        self._samples.append(sample)
        self._ordinal = 0
        if sample.logprob is not None:
            self.logprob += sample.logprob
        self.ended = rules.reason_to_end(self._tokens, self.prompt_len)
        return self.ended

    def _next_counter(self) -> tuple[int, int, int, int]:
        """(key, epoch, position, ordinal) of the next draw; counts it."""
        ordinal = self._ordinal
        self._ordinal = ordinal + 1
        return self._key, self._epoch, len(self._tokens), ordinal

    def _become_prompt(self, tokens: list[int]) -> None:
        """Add tokens and make all there are the prompt: nothing is generated yet."""
        for token in tokens:
            if self._ahead:
                self._keep_ahead(token)
            self._tokens.append(token)
        self._samples = []
        self._epoch = self._ordinal = 0
        self.prompt_len = len(self._tokens)
        self.logprob, self.ended = 0.0, None

    def _keep_ahead(self, token: int) -> None:
        """The KV behind our tokens stays valid as far as what is appended equals what was computed."""
        if self._ahead[0] == token:
            del self._ahead[0]
        else:
            self._drop_ahead()

    def _drop_ahead(self) -> None:
        self._ahead = []
        self._table.truncate(len(self._tokens))

    def _align_ahead(self, draft: list[int]) -> None:
        """Before `draft` is run behind our tokens: keep of the KV there what belongs to it."""
        kept = 0
        for ahead, token in zip(self._ahead, draft, strict=False):
            if ahead != token:
                break
            kept += 1
        if kept < min(len(self._ahead), len(draft)):
            del self._ahead[kept:]
            self._table.truncate(len(self._tokens) + kept)

    def _adopt(self, leader: Sequence, num_tokens: int) -> None:
        """Share the KV of the first `num_tokens` tokens, which `leader` has computed."""
        self._ahead = []
        self._table.adopt(leader._table, num_tokens)
        self._indexed = leader._indexed
        self._trim_indexed(num_tokens)

    def _give_up_kv(self) -> None:
        """Release all KV and keep the tokens; it is recomputed, or found shared, when the sequence is named again."""
        self._num_given_up = max(self._num_given_up, self._table.num_tokens)
        self._ahead = []
        self._indexed = None
        self._table.free()

    def _keep_computed(self, num_tokens: int) -> None:
        """Release the slots behind the first `num_tokens`: their KV is not written yet."""
        self._table.truncate(num_tokens)
        self._ahead = self._ahead[: max(0, self._table.num_tokens - len(self._tokens))]
        self._trim_indexed(self._table.num_tokens)

    def _give_up_tail(self) -> None:
        """Release the KV of the last blocks, as far as nobody else holds them."""
        blocks, counts = self._table.blocks, self._group.pool.ref_counts
        kept = len(blocks)
        while kept and counts[blocks[kept - 1]] == 1:
            kept -= 1
        if kept < len(blocks):
            self._num_given_up = max(self._num_given_up, self._table.num_tokens)
            self._ahead = []
            self._table.truncate(min(kept * self._group.pool.block_size, len(self._tokens)))
            self._trim_indexed(self._table.num_tokens)

    def _trim_indexed(self, length: int) -> None:
        if self._indexed is not None:
            self._indexed = self._indexed.at_depth(length // self._group.pool.block_size)

    def _share_kv(self, parent: Sequence) -> None:
        self._table = parent._table.fork()
        self._ahead = parent._ahead[:]
        self._indexed = parent._indexed
        self._fork_point = parent._mark_fork()

    def _mark_fork(self) -> ForkPoint:
        length = len(self._tokens)
        if self._fork_point is None or self._fork_point.length < length:
            self._fork_point = ForkPoint(length, self._fork_point)
            self._lead(self._fork_point)
        return self._fork_point

    def _lead(self, point: ForkPoint) -> None:
        if point.leader is not self:
            point.leader = self
            self._led.append(point)

    def _drop_fork_points(self, length: int) -> None:
        while self._fork_point and self._fork_point.length > length:
            self._fork_point = self._fork_point.before
        for point in self._led:
            if point.length > length and point.leader is self:
                point.leader = None
        self._led = [point for point in self._led if point.length <= length]

    def _release(self) -> None:
        self._is_freed = True
        self._table.free()
        self._ahead = []
        self._fork_point = None
        for point in self._led:
            if point.leader is self:
                point.leader = None
        self._group.unregister(self)

    def _refuse_append(self) -> None:
        self._check_usable("append to")
        raise DecoderError(f"append to a sequence that has ended ({self.ended}); check `ended` first")

    def _check_usable(self, action: str) -> None:
        if self._is_freed:
            raise DecoderError(f"cannot {action} a freed sequence")
        self._group.check_open()


def as_token(value: object) -> int:
    """The value as a token id; raises DecoderError when it is no integer."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise DecoderError(f"{value!r} is not a token id") from None
