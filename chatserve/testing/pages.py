"""`Pages`: a fake KV cache that remembers what was written where, and checks every read against it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chatserve.models.batch import Batch, Int32Array

UInt64Array = NDArray[np.uint64]
_NEVER = -1


class Pages:
    """Slots that hold, instead of K and V, the token, its position and a hash of the tokens before it.

    Real K and V depend on the token, its position and everything before it. So do these: a context that mixes pages of
    different sequences, or holds a slot at another position or never written, is refused. Pages that are consistent but
    another sequence's cannot be told here; they change the context that logits come from, so compare with a run alone.

    Args:
        num_blocks: device blocks.
        block_size: slots in a block.
        num_host_blocks: blocks of the host pool, for swapping.
    """

    def __init__(self, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.block_size = block_size
        self._device = _Slots(num_blocks, block_size)
        self._host = _Slots(num_host_blocks, block_size)

    def run(self, batch: Batch) -> Int32Array:
        """Swap out, swap in, copy, write, then read all contexts back through the block tables.

        Returns:
            int32[S, L], the tokens of each chunk's context as the pages hold them; entries past a context are 0.

        Raises:
            AssertionError: the batch is malformed or a page does not hold what it should; names the chunk.
        """
        self.move_blocks(batch)
        _check_shapes(batch)
        chunks = np.repeat(np.arange(batch.num_chunks), np.diff(batch.query_starts))
        self._check_places(batch, chunks)
        return self._write_and_read(batch, chunks)

    def move_blocks(self, batch: Batch) -> None:
        """Swap out, swap in, copy. Raises AssertionError when a list is malformed."""
        self._move(batch.swap_out, self._device, self._host, "swap out")
        self._move(batch.swap_in, self._host, self._device, "swap in")
        self._move(batch.copies, self._device, self._device, "copy")

    def _move(self, pairs: Int32Array, source: _Slots, target: _Slots, name: str) -> None:
        if not len(pairs):
            return
        sources, targets = pairs[:, 0], pairs[:, 1]
        assert _all_within(sources, source.num_blocks), f"{name}: a source block of {pairs.tolist()} does not exist"
        assert _all_within(targets, target.num_blocks), f"{name}: a target block of {pairs.tolist()} does not exist"
        assert len(np.unique(targets)) == len(targets), f"{name}: a block is the target of two pairs: {pairs.tolist()}"
        clash = source is target and np.isin(targets, sources).any()
        assert not clash, f"{name}: a block is source and target at once, the order would matter: {pairs.tolist()}"
        target.tokens[targets] = source.tokens[sources]
        target.positions[targets] = source.positions[sources]
        target.hashes[targets] = source.hashes[sources]

    def _check_places(self, batch: Batch, chunks: NDArray[np.intp]) -> None:
        """Positions are the last of each context; slots are where the block tables say, or -1; no slot twice."""
        offsets = np.arange(batch.num_tokens) - batch.query_starts[1:][chunks]
        wrong = batch.positions != batch.context_lens[chunks] + offsets
        _refuse(wrong, chunks, "positions are not the last of its context")
        num_used = -(-batch.context_lens // self.block_size)
        used = np.arange(batch.block_tables.shape[1]) < num_used[:, None]
        outside = used & ((batch.block_tables < 0) | (batch.block_tables >= self.num_blocks))
        _refuse(outside.any(axis=1), np.arange(batch.num_chunks), "its block table names a block that does not exist")
        blocks, inside = np.divmod(batch.positions, self.block_size)
        expected = batch.block_tables[chunks, blocks] * self.block_size + inside
        _refuse((batch.slots != expected) & (batch.slots != -1), chunks, "a slot is not where its block table says")
        written = batch.slots[batch.slots != -1]
        assert len(np.unique(written)) == len(written), f"a slot is written twice in one step: {np.sort(written)}"

    def _write_and_read(self, batch: Batch, chunks: NDArray[np.intp]) -> Int32Array:
        slots, is_new = batch.slots, batch.slots != -1
        tokens, positions, hashes = (array.reshape(-1) for array in self._device.arrays)
        tokens[slots[is_new]] = batch.token_ids[is_new]
        positions[slots[is_new]] = batch.positions[is_new]

        length = int(batch.context_lens.max())
        places = np.arange(length, dtype=np.int32)
        in_context = places < batch.context_lens[:, None]
        blocks = batch.block_tables[:, places // self.block_size]
        read = np.where(in_context, blocks * self.block_size + places % self.block_size, 0)
        context = np.where(in_context, tokens[read], 0)
        expected = np.cumsum(np.where(in_context, _mix(context, places), np.uint64(0)), axis=1, dtype=np.uint64)
        hashes[slots[is_new]] = expected[chunks[is_new], batch.positions[is_new]]

        rows = np.arange(batch.num_chunks)
        _refuse((in_context & (positions[read] == _NEVER)).any(axis=1), rows, "a slot of its context was never written")
        _refuse((in_context & (positions[read] != places)).any(axis=1), rows, "a slot holds another position")
        _refuse((in_context & (hashes[read] != expected)).any(axis=1), rows, "a slot was computed behind other tokens")
        _refuse(
            context[chunks, batch.positions] != batch.token_ids, chunks, "its pages hold other tokens than the batch"
        )
        return context


class _Slots:
    """The contents of one pool: arrays [num_blocks, block_size]."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.tokens = np.zeros((num_blocks, block_size), np.int32)
        self.positions = np.full((num_blocks, block_size), _NEVER, np.int32)
        self.hashes = np.zeros((num_blocks, block_size), np.uint64)

    @property
    def arrays(self) -> tuple[Int32Array, Int32Array, UInt64Array]:
        return self.tokens, self.positions, self.hashes


def _mix(tokens: Int32Array, positions: Int32Array) -> UInt64Array:
    """A 64-bit hash of (token, position); the sum over a beginning names the beginning (SplitMix64's finaliser)."""
    mixed = (tokens.astype(np.uint64) << np.uint64(32)) + positions.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _check_shapes(batch: Batch) -> None:
    num_tokens, num_chunks = batch.num_tokens, batch.num_chunks
    assert num_tokens, "an empty batch"
    assert len(batch.positions) == len(batch.slots) == num_tokens, "positions, slots and token_ids differ in length"
    assert len(batch.query_starts) - 1 == num_chunks == len(batch.block_tables), "the numbers of chunks differ"
    assert batch.query_starts[[0, -1]].tolist() == [0, num_tokens], "query_starts does not span the tokens"
    _refuse(np.diff(batch.query_starts) < 1, np.arange(num_chunks), "it has no tokens")
    assert _all_within(batch.wanted, num_tokens), f"wanted rows outside the tokens: {batch.wanted}"
    assert (np.diff(batch.wanted) > 0).all(), f"wanted rows are not ascending: {batch.wanted}"


def _all_within(numbers: Int32Array, bound: int) -> bool:
    return not len(numbers) or bool(numbers.min() >= 0 and numbers.max() < bound)


def _refuse(wrong: NDArray[np.bool_] | np.bool_, chunks: NDArray[np.intp], message: str) -> None:
    """Raise for the first entry of `wrong` that is true; `chunks` names the chunk of each."""
    if wrong.any():
        raise AssertionError(f"chunk {chunks[int(np.argmax(wrong))]}: {message}")
