"""`Swapping`: preempted groups that left for host memory, all sequences together, and their return (section 4.5)."""

from __future__ import annotations

from chatserve.config import Preemption
from chatserve.decoding.sequence import Sequence
from chatserve.engine.preemption import PreemptionCosts
from chatserve.engine.request import Request
from chatserve.kv import BlockPool, SwappedTable, SwapSpace, distinct_blocks
from chatserve.models.batch import Int32Array


class Swapping:
    """Decides whether a group is swapped or recomputed, and swaps it.

    Args:
        pool: the device pool.
        num_host_blocks: size of the host pool; 0: groups are always recomputed.
        preemption: "swap": whenever there is room for it; "recompute": never; "auto": when it is expected to be faster.
        costs: what "auto" compares.
    """

    def __init__(self, pool: BlockPool, num_host_blocks: int, preemption: Preemption, costs: PreemptionCosts) -> None:
        self.space = SwapSpace(pool, num_host_blocks)
        self.num_swaps = 0
        self._pool = pool
        self._preemption = preemption
        self._costs = costs
        self._away: dict[Request, list[tuple[Sequence, SwappedTable]]] = {}

    def swap_out(self, request: Request) -> bool:
        """Move the group's KV to the host if that is possible and wanted; False: nothing has been moved."""
        if not self.space.num_blocks or self._preemption == "recompute":
            return False
        _drop_uncomputed(request)
        sequences = [sequence for sequence in request.group.live if sequence._table.num_blocks]
        tables = [sequence._table for sequence in sequences]
        if not sequences or not self.space.can_hold(tables):
            return False
        num_blocks = len(distinct_blocks(tables))
        if self._preemption == "auto" and not self._costs.prefers_swap(num_blocks, num_blocks * self._pool.block_size):
            return False
        self._away[request] = list(zip(sequences, self.space.swap_out(tables), strict=True))
        self.num_swaps += 1
        return True

    def num_blocks_away(self, request: Request) -> int:
        """Blocks that the group takes when it returns, before it runs; 0 for one that is not here."""
        return self.space.num_blocks_of(swapped for _, swapped in self._away.get(request, ()))

    def swap_in(self, request: Request) -> None:
        """Bring the group back; one that no longer fits (prefixes were pinned meanwhile) is recomputed."""
        if self.num_blocks_away(request) > self._pool.num_free:
            self.discard(request)
        group = self._away.pop(request, [])
        self.space.swap_in(
            [(sequence._table, swapped, _found_blocks(sequence, self._pool)) for sequence, swapped in group]
        )

    def discard(self, request: Request) -> None:
        """Give up what the group has on the host, if anything: the request has ended or is to be recomputed."""
        group = self._away.pop(request, [])
        self.space.discard(swapped for _, swapped in group)
        for sequence, _ in group:
            sequence._give_up_kv()

    def take_moves(self) -> tuple[Int32Array, Int32Array]:
        """The moves out and in that the next step has to make, as in `Batch`."""
        return self.space.take_moves()


def _drop_uncomputed(request: Request) -> None:
    """Give back the slots that were made in this step: nothing will be written into them."""
    if request.draw is not None:
        for sequence in request.draw.sequences:
            sequence._keep_computed(len(sequence) - 1)
    for task in request.tasks:
        if task.scheduled_from is not None:
            task.leader._keep_computed(task.num_computed)


def _found_blocks(sequence: Sequence, pool: BlockPool) -> list[int]:
    """Device blocks that still hold the sequence's first full blocks, by the prefix index."""
    blocks: list[int] = []
    for entry in sequence._indexed.path() if sequence._indexed else ():
        if not pool.index.holds(entry):
            break
        blocks.append(entry.block)
    sequence._trim_indexed(len(blocks) * pool.block_size)
    return blocks
