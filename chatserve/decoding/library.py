"""Small helpers that several decoders want."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from chatserve.decoding.context import Context
from chatserve.decoding.search_tree import SearchTree
from chatserve.decoding.sequence import Sequence


def common_length(seqs: Iterable[Sequence]) -> int:
    """Number of generated tokens that all of the sequences share."""
    first, *others = seqs
    length = min([first.num_generated, *(other.num_generated for other in others)])
    for other in others:
        for position in range(length):
            if first._samples[position].token != other._samples[position].token:
                length = position
                break
    return length


async def complete(
    ctx: Context,
    seqs: Iterable[Sequence],
    until: Callable[[Sequence], bool] | None = None,
    publish: bool = False,
    tree: SearchTree | None = None,
) -> None:
    """Sample all sequences until each has ended, or `until(seq)` holds, which is asked after each new token.

    With `publish`, sequence i is choice i and streams as it grows; `tree` records the tokens.
    """
    sequences = list(seqs)
    running = [(index, sequence) for index, sequence in enumerate(sequences) if not sequence.ended]
    while running:
        samples = await ctx.sample([sequence for _, sequence in running])
        going = []
        for (index, sequence), sample in zip(running, samples, strict=True):
            has_ended = sequence.append(sample)
            if tree:
                tree.add(sequence, sample, "finished" if has_ended else "kept", sequence)
            if publish:
                ctx.publish(sequence, index)
            if not has_ended and not (until and until(sequence)):
                going.append((index, sequence))
        running = going
        if tree:
            tree.step()
