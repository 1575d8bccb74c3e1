"""Shared prefix: answer behind a registered prefix, which is computed once for all requests."""

from typing import Annotated

from msgspec import Meta

from chatserve.decoding import Context, Params, Sequence, complete, decoder


class SharedPrefixParams(Params, frozen=True):
    """Parameters of the shared prefix."""

    prefix: Annotated[str, Meta(min_length=1, description="Name of a registered prefix.")]


@decoder("shared-prefix", params=SharedPrefixParams, sequences=lambda params, n: n + 1)
async def shared_prefix(ctx: Context, prompt: Sequence, params: SharedPrefixParams) -> None:
    """Shared prefix: sample n answers to the registered prefix followed by the prompt.

    The prefix's blocks are mapped into every request; its last partial block is copied when it is first written.
    """
    with ctx.prefix(params.prefix) as prefix:
        whole = ctx.sequence(prompt.tokens, parent=prefix)
    prompt.free()
    await complete(ctx, [whole] + [whole.fork() for _ in range(ctx.n - 1)], publish=True)
