"""`Decodes`: the arrays of a step that is nothing but plain draws; while it runs, they tell those of the next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chatserve.kv import BlockTable
from chatserve.models.batch import Int32Array


@dataclass(slots=True)
class Decodes:
    """One token for each of some sequences.

    Most decoders append the token they get and ask for another. So the next step's arrays are, most likely, these with
    every sequence one token longer. Such a forecast holds no block and is only compared with what has come about: it
    can spare time, and change nothing.

    Attributes:
        tables: of each sequence.
        stops: tokens of each sequence.
        positions, context_lens, slots, query_starts: as in `Batch`, by which they are read only once they run.
    """

    tables: list[BlockTable]
    stops: list[int]
    positions: Int32Array
    context_lens: Int32Array
    slots: Int32Array
    query_starts: Int32Array

    @classmethod
    def of(cls, tables: list[BlockTable], stops: list[int]) -> Decodes:
        """For sequences of these tables and lengths; no slot is known yet."""
        context_lens = np.array(stops, np.int32)
        query_starts = np.arange(len(stops) + 1, dtype=np.int32)
        return cls(tables, stops, context_lens - 1, context_lens, np.empty_like(context_lens), query_starts)

    def foresee(self) -> Decodes:
        """One token further; slots are right as long as a sequence's blocks stay as they are, and suffice."""
        stops = [stop + 1 for stop in self.stops]
        return Decodes(self.tables, stops, self.context_lens, self.context_lens + 1, self.slots + 1, self.query_starts)

    def are_of(self, tables: list[BlockTable], stops: list[int]) -> bool:
        """Whether they are those of sequences of these tables and lengths, in this order."""
        return self.tables == tables and self.stops == stops
