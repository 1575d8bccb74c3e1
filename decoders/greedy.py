"""Greedy decoding: always the likeliest token."""

from chatserve.decoding import Context, Params, Rejected, Sequence, decoder


@decoder("greedy")
async def greedy(ctx: Context, prompt: Sequence, params: Params) -> None:
    """Greedy decoding: always the likeliest next token, whatever the request's temperature."""
    if ctx.n > 1:
        raise Rejected("n", f"is {ctx.n}, but greedy decoding gives one answer; use decoder 'parallel'")
    while not prompt.ended:
        [sample] = await ctx.sample([prompt], temperature=0)
        prompt.append(sample)
        ctx.publish(prompt)
