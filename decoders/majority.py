"""Majority vote, or self-consistency: sample several answers, return one of the most frequent result."""

import math
import time
from collections import Counter
from typing import Annotated

import regex
from msgspec import Meta

from chatserve.decoding import Context, Params, Rejected, SearchTree, Sequence, complete, decoder

PATIENCE = 0.2  # seconds of processor time for all matching of one vote: meanwhile nobody else is served
MAX_REPEATS = 100_000  # that compiling may unroll, in one call that nothing can interrupt
COUNT = regex.compile(r"(\d+)[\s,]*}")  # the larger number of a counted repeat, or of what may be one


class MajorityParams(Params, frozen=True):
    """Parameters of the vote."""

    votes: Annotated[int, Meta(ge=1, le=128, description="Answers to sample.")] = 5
    pattern: Annotated[
        str, Meta(max_length=200, description="Regular expression; its last match (group 1, if any) is the result.")
    ] = r"(-?\d+(?:\.\d+)?)"


def compiled(pattern: str) -> "regex.Pattern[str]":
    """The pattern, ready to match. Raises Rejected when it is malformed, or its counted repeats may take too long."""
    repeats = math.prod(max(1, int(count[1])) for count in COUNT.finditer(pattern))
    if repeats > MAX_REPEATS:
        reason = f"has counted repeats that multiply to more than {MAX_REPEATS}; use * or +"
        raise Rejected("decoder_params.pattern", reason)
    try:
        return regex.compile(pattern)
    except Exception as error:  # besides regex.error a bad pattern raises OverflowError, RecursionError, KeyError
        raise Rejected("decoder_params.pattern", f"is not a regular expression: {error}") from None


def extract(pattern: "regex.Pattern[str]", text: str, deadline: float) -> str | None:
    """What an answer votes for: the last match of the pattern, None without one.

    Raises Rejected when the processor time `deadline` passes meanwhile: some patterns take exponential time on
    some texts.
    """
    last = None
    try:
        for match in pattern.finditer(text, timeout=max(1e-3, deadline - time.process_time())):
            last = match
    except TimeoutError:
        raise Rejected("decoder_params.pattern", "takes too long to match; avoid nested repetitions") from None
    return last and (last[1] if pattern.groups else last[0])


@decoder("majority", params=MajorityParams, sequences=lambda params, n: params.votes)
async def majority(ctx: Context, prompt: Sequence, params: MajorityParams) -> None:
    """Majority vote (self-consistency): sample `votes` answers, return the likeliest with the commonest result."""
    if ctx.n > 1:
        raise Rejected("n", f"is {ctx.n}, but a vote gives one answer")
    pattern = compiled(params.pattern)
    answers = [prompt] + [prompt.fork() for _ in range(params.votes - 1)]
    tree = SearchTree(ctx, answers)
    await complete(ctx, answers, tree=tree)
    deadline = time.process_time() + PATIENCE
    votes = {answer: extract(pattern, answer.text, deadline) for answer in answers}
    tally = Counter(vote for vote in votes.values() if vote is not None)
    winner = tally.most_common(1)[0][0] if tally else None
    answers.sort(key=lambda answer: (votes[answer] == winner, answer.mean_logprob), reverse=True)
    ctx.publish(answers[0])
    tree.conclude(answers, votes=dict(tally))
