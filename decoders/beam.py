"""Beam search: keep the likeliest hypotheses."""

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from chatserve.decoding import Context, Params, Rejected, Sample, SearchTree, Sequence, TopK, common_length, decoder

Scores: TypeAlias = NDArray[np.float64]


class BeamParams(Params, frozen=True):
    """Parameters of beam search."""

    width: Annotated[int, Meta(ge=1, le=64, description="Hypotheses kept at each step.")] = 4
    length_penalty: Annotated[
        float, Meta(ge=-10, le=10, description="Scores are divided by length ** this; above 0 favours long answers.")
    ] = 1.0
    early_stopping: Annotated[
        bool | Literal["never"],
        Meta(
            description="When to stop. true: with `width` finished hypotheses; false: when no live one seems better;"
            " never: when none can be."
        ),
    ] = False


class FinishedHypotheses:
    """The best hypotheses that have ended, best first, at most `width` of them."""

    def __init__(self, params: BeamParams, width: int, max_tokens: int) -> None:
        self.params = params
        self.width = width
        self.max_tokens = max_tokens
        self.best: list[Sequence] = []

    def score(self, hypothesis: Sequence, length: int | None = None) -> float:
        """Log-probability, normalised by the generated length (the end token counts), or as if it had `length`."""
        return float(hypothesis.logprob / (length or hypothesis.num_generated) ** self.params.length_penalty)

    def offer(self, hypothesis: Sequence) -> list[Sequence]:
        """Keep the hypothesis if it is among the best; answers the one that had to go, if any."""
        ranked = sorted([*self.best, hypothesis], key=self.score, reverse=True)
        self.best = ranked[: self.width]
        return ranked[self.width :]

    def settled(self, beams: list[Sequence]) -> bool:
        """Whether the search is over: no live beam can still enter the list, as `early_stopping` understands it."""
        if not beams:
            return True
        if len(self.best) < self.width:
            return False
        if self.params.early_stopping is True:
            return True
        is_patient = self.params.early_stopping == "never" and self.params.length_penalty > 0
        attainable = self.score(beams[0], self.max_tokens if is_patient else None)
        return attainable <= self.score(self.best[-1])


def totals(beams: list[Sequence], top: TopK) -> Scores:
    """Log-probability of every (beam, candidate) pair, float64[beams, k]."""
    return np.array([beam.logprob for beam in beams])[:, None] + top.logprobs


def best_extensions(beams: list[Sequence], top: TopK, scores: Scores, count: int) -> Iterator[tuple[Sequence, Sample]]:
    """The `count` (beam, next token) pairs with the best scores over all beams, best first; forbidden tokens never."""
    for flat in np.argsort(-scores, axis=None, kind="stable")[:count]:
        row, column = divmod(int(flat), scores.shape[1])
        if scores[row, column] == -np.inf:
            return
        yield beams[row], top.sample(row, column)


def extend(
    beams: list[Sequence], extensions: Iterator[tuple[Sequence, Sample]], finished: FinishedHypotheses, tree: SearchTree
) -> list[Sequence]:
    """The next live beams; extensions that end are offered to `finished`, the old beams are freed.

    An extension that ends counts only among the first `width` candidates.
    """
    extended: list[Sequence] = []
    for rank, (parent, sample) in enumerate(extensions):
        child = parent.fork()
        if not child.append(sample):
            extended.append(child)
            tree.add(parent, sample, "kept", child)
        elif rank < finished.width:
            tree.add(parent, sample, "finished", child)
            for loser in finished.offer(child):
                tree.change(loser, "dropped")
            child.free()
        else:
            tree.add(parent, sample, "dropped")
            child.free()
        if len(extended) == finished.width:
            break
    tree.drop(extensions)
    for beam in beams:
        beam.free()
    return extended


def nth(ranked: list[Sequence], index: int) -> Sequence:
    """The hypothesis for a choice: the last one stands for all that the search has not found."""
    return ranked[min(index, len(ranked) - 1)]


@decoder("beam", params=BeamParams, sequences=lambda params, n: 2 * params.width)
async def beam(ctx: Context, prompt: Sequence, params: BeamParams) -> None:
    """Beam search: keep the `width` likeliest hypotheses; forks share every common block.

    Streams the prefix that all live and all finished hypotheses share, so nothing is ever taken back.
    """
    if params.width < ctx.n:
        raise Rejected("decoder_params.width", f"is {params.width}, must be at least n = {ctx.n}")
    beams, finished = [prompt], FinishedHypotheses(params, params.width, ctx.max_tokens)
    count, tree = max(2, 1 + len(ctx.end_tokens)) * params.width, SearchTree(ctx, [prompt])
    while not finished.settled(beams):
        top = await ctx.topk(beams, count)
        beams = extend(beams, best_extensions(beams, top, totals(beams, top), count), finished, tree)
        tree.step()
        possible = beams + finished.best
        for index in range(ctx.n):
            ctx.publish(possible[0], index, length=common_length(possible))
    ranked = finished.best + beams
    for index in range(ctx.n):
        ctx.publish(nth(ranked, index), index)
    tree.conclude(ranked)
