"""Conversations with and without finding the KV of earlier rounds again, which the paper leaves open."""

from __future__ import annotations

from pathlib import Path

from benchmarks.paper.conversations import Conversations
from benchmarks.paper.cost import CostModel
from benchmarks.paper.laboratory import Laboratory
from benchmarks.paper.paged import PagedServer
from benchmarks.paper.plots import plot_curves
from benchmarks.paper.points import cached, summary
from benchmarks.paper.report import Row
from benchmarks.paper.served_model import OPT_13B

_RATES = (0.5, 1.0)  # conversations that begin in a second
_COUNT = 150
_SHOWN = {
    "latency": "s/token",
    "first token p50": "s",
    "first token p99": "s",
    "computed_tokens": "in all",
    "prefix_hit_tokens": "in all",
}


def run(laboratory: Laboratory, folder: Path) -> list[Row]:
    """The prefix index keeps what nobody holds as long as nobody needs the room, so it takes room from no one."""
    keys = [(rate, is_kept) for rate in _RATES for is_kept in (False, True)]
    found = dict(zip(keys, laboratory.map(_measure, keys), strict=True))
    names = {False: "forgotten between rounds", True: "found again"}
    panels = {
        f"{figure}, {_SHOWN[figure]}": {
            f"KV {name}": [(rate, found[rate, kept][figure]) for rate in _RATES] for kept, name in names.items()
        }
        for figure in ("latency", "first token p99")
    }
    plot_curves(folder / "reuse.png", panels, x="conversations a second", y="", limit=None)
    return [
        Row(
            "beside the paper",
            f"{rate:g} conversations/s, KV {names[is_kept]}: {figure.replace('_', ' ')}, {unit}",
            None,
            found[rate, is_kept][figure],
        )
        for rate, is_kept in keys
        for figure, unit in _SHOWN.items()
    ]


def _measure(key: tuple[float, bool]) -> dict[str, float]:
    return cached(f"reuse {key} {_COUNT}", lambda: _simulate(*key))


def _simulate(rate: float, is_kept: bool) -> dict[str, float]:
    conversations = Conversations(rate, _COUNT)
    server = PagedServer(CostModel(OPT_13B, 16), prefix_caching=is_kept)
    return summary(server.serve(conversations.jobs, conversations.follow_up), OPT_13B.trace_seconds)
