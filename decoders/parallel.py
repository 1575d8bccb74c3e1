"""Parallel sampling: several answers to one prompt."""

from chatserve.decoding import Context, Params, SearchTree, Sequence, complete, decoder


@decoder("parallel")
async def parallel(ctx: Context, prompt: Sequence, params: Params) -> None:
    """Parallel sampling: n answers; the forks share the prompt's blocks, which are computed once."""
    answers = [prompt] + [prompt.fork() for _ in range(ctx.n - 1)]
    tree = SearchTree(ctx, answers)
    await complete(ctx, answers, publish=True, tree=tree)
    tree.conclude(answers)
