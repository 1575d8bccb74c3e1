"""Majority vote, or self-consistency: sample several answers, return one of the most frequent result."""

import re
from collections import Counter
from typing import Annotated

from msgspec import Meta

from chatserve.decoding import Context, Params, Rejected, Sequence, complete, decoder


class MajorityParams(Params, frozen=True):
    """Parameters of the vote."""

    votes: Annotated[int, Meta(ge=1, le=128, description="Answers to sample.")] = 5
    pattern: Annotated[
        str, Meta(max_length=200, description="Regular expression; its last match (group 1, if any) is the result.")
    ] = r"(-?\d+(?:\.\d+)?)"


def extract(pattern: re.Pattern[str], text: str) -> str | None:
    """What an answer votes for: the last match of the pattern, None without one."""
    matches = list(pattern.finditer(text))
    return (matches[-1][1] if pattern.groups else matches[-1][0]) if matches else None


@decoder("majority", params=MajorityParams, sequences=lambda params, n: params.votes)
async def majority(ctx: Context, prompt: Sequence, params: MajorityParams) -> None:
    """Majority vote (self-consistency): sample `votes` answers, return the likeliest with the commonest result."""
    if ctx.n > 1:
        raise Rejected("n", f"is {ctx.n}, but a vote gives one answer")
    try:
        pattern = re.compile(params.pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise Rejected("decoder_params.pattern", f"is not a regular expression: {error}") from None
    answers = [prompt] + [prompt.fork() for _ in range(params.votes - 1)]
    await complete(ctx, answers)
    votes = {answer: extract(pattern, answer.text) for answer in answers}
    tally = Counter(vote for vote in votes.values() if vote is not None)
    ctx.trace(votes=dict(tally))
    winner = tally.most_common(1)[0][0] if tally else None
    ctx.publish(max((a for a in answers if votes[a] == winner), key=lambda answer: answer.mean_logprob))
