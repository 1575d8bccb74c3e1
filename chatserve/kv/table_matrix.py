"""`TableMatrix`: the block tables of a batch as one matrix that is kept from step to step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chatserve.kv.block_table import BlockTable

_LEAST_WIDTH = 8


class TableMatrix:
    """One line for each chunk of the batch, written only when another table, or another block, stands there.

    So an unchanged line costs one comparison, whatever the context, and the matrix is handed out without being copied.

    Attributes:
        changed: the lines that the last call of `stack` wrote.
    """

    def __init__(self) -> None:
        self.changed: list[int] = []
        self._lines = np.zeros((1, _LEAST_WIDTH), np.int32)
        self._counts = np.zeros(1, np.int32)  # blocks written into each line
        self._tables: list[BlockTable] = []  # what stands in each line, and as of which version
        self._versions: list[int] = []

    def stack(self, tables: Sequence[BlockTable]) -> NDArray[np.int32]:
        """All blocks of each table, 0 behind them: int32[len(tables), width], where width may exceed the longest.

        A contiguous view, read only; valid until the next call or a change of a table.
        """
        known = zip(tables, self._tables, self._versions, strict=False)
        changed = [
            line for line, (table, was, version) in enumerate(known) if table is not was or table.version != version
        ]
        changed += range(len(self._tables), len(tables))
        for line in changed:
            self._write(line, tables[line])
        self.changed = changed
        if changed:
            self._shrink(len(tables))
        return self._lines[: len(tables)]

    def _write(self, line: int, table: BlockTable) -> None:
        count, (height, width) = table.num_blocks, self._lines.shape
        if line >= height or count > width:
            self._resize(max(height, 2 * line), width if count <= width else 2 * count)
        self._lines[line, :count] = table.blocks
        self._lines[line, count : self._counts[line]] = 0
        self._counts[line] = count
        self._tables[line : line + 1] = [table]
        self._versions[line : line + 1] = [table.version]

    def _shrink(self, num_lines: int) -> None:
        """Give memory, and the readers' time, back when the long tables have gone."""
        longest = max(_LEAST_WIDTH, int(self._counts[:num_lines].max()))
        if 4 * longest < self._lines.shape[1]:
            del self._tables[num_lines:], self._versions[num_lines:]
            self._resize(num_lines, 2 * longest)

    def _resize(self, height: int, width: int) -> None:
        lines, counts = np.zeros((height, width), np.int32), np.zeros(height, np.int32)
        kept = self._lines[:height, :width]
        lines[: len(kept), : kept.shape[1]] = kept
        counts[: len(kept)] = self._counts[: len(kept)]
        self._lines, self._counts = lines, counts
