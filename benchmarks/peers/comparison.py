"""`compare`: all engines on all workloads in turns, and `Result`, what came out."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.peers.peer import Peer
from benchmarks.peers.workload import Workload


@dataclass(frozen=True, slots=True)
class Result:
    """Rates of one engine on one workload, tokens a second, one a round."""

    workload: str
    engine: str
    rates: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.rates)


def compare(peers: list[Peer], workloads: list[Workload], num_rounds: int, tell: Callable[[str], None]) -> list[Result]:
    """Measure `num_rounds` rounds of every workload; in a round the engines take turns, each time another one first.

    An engine that fails on a workload is left out of it, and `tell` is told why.
    """
    results = []
    for workload in workloads:
        running = [peer for peer in peers if peer.can_run(workload)]
        rates: dict[str, list[float]] = {peer.name: [] for peer in running}
        for number in range(num_rounds):
            for peer in _in_turn(running, number):
                try:
                    rate = workload.num_tokens / peer.seconds(workload, number)
                except RuntimeError as error:
                    tell(f"{workload.title}: left out {error}")
                    running.remove(peer)
                    continue
                rates[peer.name].append(rate)
                tell(f"{workload.title}, round {number + 1}/{num_rounds}: {peer.name} {rate:.1f} tok/s")
        results += [Result(workload.title, name, each) for name, each in rates.items() if each]
    return results


def _in_turn(peers: list[Peer], number: int) -> list[Peer]:
    """All peers, from another one on in each round."""
    first = number % len(peers) if peers else 0
    return peers[first:] + peers[:first]
