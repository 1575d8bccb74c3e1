"""`SequenceGroup`: all sequences of one request, and `Rules`: when a hypothesis of it ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from threading import get_ident

from chatserve.decoding.errors import DecoderError
from chatserve.decoding.sequence import Sequence
from chatserve.kv import BlockPool
from chatserve.text import StopMatcher, Vocabulary, final_text


@dataclass(frozen=True, slots=True)
class Rules:
    """When a hypothesis ends, and what its text is.

    Attributes:
        vocabulary: the tokenizer.
        vocab_size: number of logits in a row.
        end_token_ids: tokens that end a hypothesis with "stop".
        stop_strings: strings that do; `stop_matcher` finds them.
        min_tokens: stop strings are ignored before this many generated tokens (end tokens are impossible).
        max_tokens: generated tokens at which a hypothesis ends with "length".
        max_len: tokens, prompt included, at which it ends with "length" (the context).
    """

    vocabulary: Vocabulary
    vocab_size: int
    end_token_ids: frozenset[int]
    stop_strings: tuple[str, ...]
    stop_matcher: StopMatcher | None
    min_tokens: int
    max_tokens: int
    max_len: int

    def reason_to_end(self, tokens: list[int], prompt_len: int) -> str | None:
        """Why a hypothesis ends with its last token: "stop", "length", or None when it does not."""
        num_generated = len(tokens) - prompt_len
        if tokens[-1] in self.end_token_ids:
            return "stop"
        matcher = self.stop_matcher
        if matcher is not None and num_generated >= self.min_tokens and matcher.matches(tokens, start=prompt_len):
            return "stop"
        if num_generated >= self.max_tokens or len(tokens) >= self.max_len:
            return "length"
        return None

    def text_of(self, generated: list[int]) -> str:
        """Text of generated tokens, cut at the earliest stop string."""
        return final_text(self.vocabulary, generated, self.stop_strings, min_tokens=self.min_tokens)


class SequenceGroup:
    """The sequences of one request: the gang that is admitted, preempted and resumed together (section 4.5).

    Args:
        pool: where their KV blocks come from.
        rules: when a hypothesis ends.
        max_sequences: most sequences that may be live at once.
    """

    def __init__(self, pool: BlockPool, rules: Rules, max_sequences: int) -> None:
        self.pool = pool
        self.rules = rules
        self.max_sequences = max_sequences
        self.live: dict[Sequence, None] = {}  # in order of creation
        self.num_made = 0
        self.is_closed = False
        self.thread = get_ident()  # the one that steps its decoder

    def register(self, sequence: Sequence) -> None:
        if len(self.live) >= self.max_sequences:
            raise DecoderError(f"more than max_sequences = {self.max_sequences} live sequences; free some")
        self.live[sequence] = None
        self.num_made += 1

    def unregister(self, sequence: Sequence) -> None:
        self.live.pop(sequence, None)

    def state(self) -> tuple[int, ...]:
        """Numbers that are the same at two times only if no sequence was made, freed or changed between them."""
        lengths = sum(len(sequence) for sequence in self.live)
        return self.num_made, len(self.live), lengths, sum(sequence._version for sequence in self.live)

    def check_open(self) -> None:
        if self.is_closed:
            raise DecoderError("the request has ended; its sequences cannot be changed any more")
        if get_ident() != self.thread:
            raise DecoderError("sequences may be changed by their decoder only, not by another thread")

    def close(self) -> None:
        """Release every sequence that is left; the decoder must have been closed before."""
        self.is_closed = True
        for sequence in list(self.live):
            sequence._release()

    def give_up_kv(self, sequences: Iterable[Sequence] | None = None) -> None:
        """Release the KV of all, or of these, and keep all tokens: recomputation will bring it back (section 4.5)."""
        for sequence in self.live if sequences is None else sequences:
            sequence._give_up_kv()
