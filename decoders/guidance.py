"""Classifier-free guidance for text: push the answer away from what a negative prompt would give."""

from typing import Annotated

import numpy as np
from msgspec import Meta

from chatserve.decoding import Context, Params, Rejected, Sequence, decoder

WORTH_SHARING = 16  # tokens
IMPOSSIBLE = -1e4  # in place of -inf: the difference of two infinities is no number


class GuidanceParams(Params, frozen=True):
    """Parameters of guidance."""

    negative: Annotated[
        str, Meta(min_length=1, max_length=20_000, description="The prompt to move away from, as plain text.")
    ] = "\n"
    scale: Annotated[float, Meta(ge=0, le=20, description="1 is plain sampling; above 1 follows the prompt more.")] = (
        1.5
    )


@decoder("guidance", params=GuidanceParams, sequences=lambda params, n: 2)
async def guidance(ctx: Context, prompt: Sequence, params: GuidanceParams) -> None:
    """Classifier-free guidance: negative + scale * (positive - negative) over the log-probabilities of two prompts."""
    if ctx.n > 1:
        raise Rejected("n", f"is {ctx.n}, but guidance gives one answer")
    negative = ctx.sequence(ctx.tokenize(params.negative))
    if prompt[:WORTH_SHARING] == negative[:WORTH_SHARING]:
        await ctx.topk([prompt], 1)  # computed first: the negative prompt then finds its beginning in the prefix cache
    while not prompt.ended and not negative.ended:
        rows = np.maximum(await ctx.logits([prompt, negative], stage="raw"), IMPOSSIBLE)
        positive, other = rows[0, -1], rows[1, -1]
        sample = ctx.draw(prompt, other + params.scale * (positive - other))
        if not prompt.append(sample):
            negative.append(sample.token)
        ctx.publish(prompt)
    if not prompt.ended:
        ctx.finish(reason="length")  # the negative prompt has filled its context first
