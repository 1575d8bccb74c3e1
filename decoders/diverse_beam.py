"""Diverse beam search: groups of beams that avoid each other's tokens (Vijayakumar et al., 2016)."""

from itertools import chain, zip_longest
from typing import Annotated

import numpy as np
from msgspec import Meta

from chatserve.decoding import Context, Rejected, SearchTree, Sequence, common_length, decoder
from decoders.beam import BeamParams, FinishedHypotheses, best_extensions, extend, nth, totals


class DiverseBeamParams(BeamParams, frozen=True):
    """Parameters of diverse beam search; `width` counts the beams of all groups together."""

    groups: Annotated[int, Meta(ge=1, le=16, description="Groups; `width` must be a multiple of it.")] = 2
    diversity_penalty: Annotated[
        float, Meta(ge=0, description="Taken off a token's score for each beam of earlier groups that chose it.")
    ] = 0.5


class Group:
    """One group: its live beams and its finished hypotheses."""

    def __init__(self, beams: list[Sequence], finished: FinishedHypotheses) -> None:
        self.beams = beams
        self.finished = finished

    @property
    def possible(self) -> list[Sequence]:
        """What may still be returned, best first."""
        return self.finished.best + self.beams


@decoder("diverse-beam", params=DiverseBeamParams, sequences=lambda params, n: 2 * params.width + params.groups)
async def diverse_beam(ctx: Context, prompt: Sequence, params: DiverseBeamParams) -> None:
    """Diverse beam search: groups advance in turn; a token that an earlier group chose at this step costs more.

    The penalty decides which beams survive; scores stay true log-probabilities. Returns the best of each group in turn.
    """
    if params.width % params.groups or params.width < ctx.n:
        raise Rejected("decoder_params.width", f"is {params.width}, must be a multiple of groups and at least n")
    width = params.width // params.groups
    count = max(2, 1 + len(ctx.end_tokens)) * width
    groups = [Group([prompt.fork()], FinishedHypotheses(params, width, ctx.max_tokens)) for _ in range(params.groups)]
    tree = SearchTree(ctx, [beam for group in groups for beam in group.beams])
    prompt.free()
    while live := [group for group in groups if not group.finished.settled(group.beams)]:
        tops = await ctx.gather(*(ctx.topk(group.beams, count + params.width) for group in live))
        chosen: list[int] = []
        for group, top in zip(live, tops, strict=True):
            repeats = (top.tokens[:, :, None] == np.array(chosen, np.int64)).sum(-1)
            scores = totals(group.beams, top) - params.diversity_penalty * repeats
            extensions = best_extensions(group.beams, top, scores, count)
            group.beams = extend(group.beams, extensions, group.finished, tree)
            chosen += [beam[-1] for beam in group.beams]
        tree.step()
        everything = [hypothesis for group in groups for hypothesis in group.possible]
        for index in range(ctx.n):
            ctx.publish(everything[0], index, length=common_length(everything))
    in_turn = chain.from_iterable(zip_longest(*(group.possible for group in groups)))
    best = [hypothesis for hypothesis in in_turn if hypothesis is not None]
    for index in range(ctx.n):
        ctx.publish(nth(best, index), index)
    tree.conclude(best)
