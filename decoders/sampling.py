"""Sampling: one token drawn at a time."""

from chatserve.decoding import Context, Params, Rejected, Sequence, decoder


@decoder("sampling")
async def sampling(ctx: Context, prompt: Sequence, params: Params) -> None:
    """Sampling: draw each token by temperature, top-k, top-p and min-p."""
    if ctx.n > 1:
        raise Rejected("n", f"is {ctx.n}, but sampling gives one answer; use decoder 'parallel'")
    while not prompt.ended:
        [sample] = await ctx.sample([prompt])
        prompt.append(sample)
        ctx.publish(prompt)
