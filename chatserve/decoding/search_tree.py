"""`SearchTree`: a search as data, for clients that ask with ``return_trace``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from chatserve.decoding.context import Context
from chatserve.decoding.samples import Sample
from chatserve.decoding.sequence import Sequence

State: TypeAlias = Literal["kept", "finished", "dropped"]
_Tip: TypeAlias = tuple[int, float]  # a node's id, and the sum of the log-probabilities from the root to it


class SearchTree:
    """The tokens that a search has looked at, as the nodes of a tree; each `step` is one record of `Context.trace`.

    Node 0 is the prompt, ids are never used twice, parents have smaller ids than their children. Where nobody asked for
    a trace, all methods return at once.

    Args:
        ctx: the context whose client may want the trace.
        roots: sequences that stand at node 0: the prompt, and forks of it that were made at once.
    """

    def __init__(self, ctx: Context, roots: Iterable[Sequence]) -> None:
        self._ctx = ctx
        self._is_wanted = ctx._trace is not None
        self._tips: dict[Sequence, _Tip] = dict.fromkeys(roots, (0, 0.0))
        self._nodes: list[dict[str, Any]] = []
        self._changed: list[dict[str, Any]] = []
        self._num_nodes = 1
        self._num_steps = 0

    def add(
        self,
        parent: Sequence,
        items: Sample | int | Iterable[Sample | int],
        state: State,
        child: Sequence | None = None,
        **more: Any,
    ) -> None:
        """New nodes, one below the other, behind the last token of `parent`.

        `child`, which may be `parent` itself, is the sequence that ends with the last of them; candidates that no
        sequence was made for have none. `more` are further fields of the nodes, of values that JSON knows.
        """
        if not self._is_wanted:
            return
        tip = self._tips[parent]
        for item in (items,) if isinstance(items, Sample) or not isinstance(items, Iterable) else items:
            tip = self._add_node(tip, item if isinstance(item, Sample) else Sample(item), state, more)
        if child is not None:
            self._tips[child] = tip

    def drop(self, candidates: Iterable[tuple[Sequence, Sample]], **more: Any) -> None:
        """Nodes for all (parent, next token) pairs that were considered and not taken."""
        if self._is_wanted:
            for parent, sample in candidates:
                self.add(parent, sample, "dropped", **more)

    def change(self, seq: Sequence, state: State | Literal["returned"], **more: Any) -> None:
        """The node that a sequence ends with has another state from now on."""
        if self._is_wanted:
            self._changed.append({"id": self._tips[seq][0], "state": state, **more})

    def step(self, **more: Any) -> None:
        """Record what is new since the last call; `more` are further fields of the record."""
        if not self._is_wanted:
            return
        self._ctx.trace(step=self._num_steps, nodes=self._nodes, changed=self._changed, **more)
        self._num_steps += 1
        self._nodes, self._changed = [], []
        self._tips = {seq: tip for seq, tip in self._tips.items() if seq.ended or not seq.is_freed}

    def conclude(self, ranked: Iterable[Sequence], **more: Any) -> None:
        """The last step: of these hypotheses, best first, the first n are returned as choices 0 to n - 1."""
        if not self._is_wanted:
            return
        for place, seq in enumerate(ranked):
            if place < self._ctx.n:
                self.change(seq, "returned", choice=place)
            else:
                self.change(seq, "dropped")
        self.step(**more)

    def _add_node(self, parent: _Tip, sample: Sample, state: State, more: dict[str, Any]) -> _Tip:
        vocabulary = self._ctx._group.rules.vocabulary
        shown = vocabulary.token_bytes(sample.token).decode("utf-8", "replace")
        node_id, total = self._num_nodes, parent[1] + (sample.logprob or 0.0)
        self._num_nodes += 1
        self._nodes.append(
            {
                "id": node_id,
                "parent": parent[0],
                "token": sample.token,
                "text": shown or vocabulary.token_name(sample.token),
                "logprob": sample.logprob,
                "total": total,
                "state": state,
                **more,
            }
        )
        return node_id, total
