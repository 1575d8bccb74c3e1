"""The decoder API: all that a plugin imports.

A decoder is an ``async def (ctx, prompt, params)``: a plain coroutine that composes `Sequence.fork`, `append` and
`free` and awaits rows from its `Context`. See ``docs/decoders.md``.
"""

from chatserve.decoding.context import Context
from chatserve.decoding.errors import DecoderError, Rejected
from chatserve.decoding.library import common_length, complete
from chatserve.decoding.randomness import derive_seed
from chatserve.decoding.registry import Decoder, Params, Registry, decoder
from chatserve.decoding.samples import Sample, TopK
from chatserve.decoding.sampling import Sampling
from chatserve.decoding.search_tree import SearchTree
from chatserve.decoding.sequence import Sequence

__all__ = [
    "Context",
    "Decoder",
    "DecoderError",
    "Params",
    "Registry",
    "Rejected",
    "Sample",
    "Sampling",
    "SearchTree",
    "Sequence",
    "TopK",
    "common_length",
    "complete",
    "decoder",
    "derive_seed",
]
