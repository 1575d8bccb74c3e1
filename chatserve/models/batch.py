"""`Batch`: everything one forward needs, as plain arrays (the paper's control message, section 4.3).

The scheduler fills it, a runner reads it. It is picklable and holds no references to engine state, so that
several workers could receive the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]
Float32Array = NDArray[np.float32]


def _no_pairs() -> Int32Array:
    return np.empty((0, 2), np.int32)


@dataclass(slots=True)
class Batch:
    """One step's work: S chunks of consecutive tokens, T tokens in all, R wanted logits rows.

    Chunk s owns the flat tokens ``query_starts[s] : query_starts[s + 1]``. Its last token sees
    ``context_lens[s]`` tokens: those already in its pages and the chunk itself (causal); a decode is a chunk of one.

    Attributes:
        token_ids: int32[T].
        positions: int32[T], position of each token in its sequence.
        slots: int32[T], where the token's K and V go: ``block * block_size + offset``; -1 means they are in
            the pages already (the position is only run again for its logits) and must not be written.
        query_starts: int32[S + 1], prefix sums of the chunk lengths.
        context_lens: int32[S], equals the position of the chunk's last token + 1.
        block_tables: int32[S, W], physical block of each logical block; entries past the context mean nothing. It is
            the engine's own, kept from step to step: read only, valid until the next batch is built.
        wanted: int32[R], indices into the T tokens, ascending: the rows whose logits are wanted. May be empty.
        copies: int32[C, 2], (source, destination) blocks to copy, all layers, BEFORE anything is written.
        swap_out: int32[., 2], (device block, host block) pairs to save before `copies` run.
        swap_in: int32[., 2], (host block, device block) pairs to restore before `copies` run, after `swap_out`.
    """

    token_ids: Int32Array
    positions: Int32Array
    slots: Int32Array
    query_starts: Int32Array
    context_lens: Int32Array
    block_tables: Int32Array
    wanted: Int32Array
    copies: Int32Array = field(default_factory=_no_pairs)
    swap_out: Int32Array = field(default_factory=_no_pairs)
    swap_in: Int32Array = field(default_factory=_no_pairs)

    @classmethod
    def of_moves(cls, swap_out: Int32Array, swap_in: Int32Array) -> Batch:
        """A batch without tokens: it swaps blocks and computes nothing."""
        empty = np.empty(0, np.int32)
        tables = np.empty((0, 0), np.int32)
        return cls(empty, empty, empty, np.zeros(1, np.int32), empty, tables, empty, swap_out=swap_out, swap_in=swap_in)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_chunks(self) -> int:
        return len(self.context_lens)
