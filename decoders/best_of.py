"""Best-of: sample several answers, return the best."""

from typing import Annotated

from msgspec import Meta

from chatserve.decoding import Context, Params, Rejected, SearchTree, Sequence, complete, decoder


class BestOfParams(Params, frozen=True):
    """Parameters of best-of."""

    best_of: Annotated[int, Meta(ge=1, le=128, description="Answers to sample.")] = 4


@decoder("best-of", params=BestOfParams, sequences=lambda params, n: params.best_of)
async def best_of(ctx: Context, prompt: Sequence, params: BestOfParams) -> None:
    """Best-of: sample `best_of` answers and return the n with the highest mean log-probability."""
    if params.best_of < ctx.n:
        raise Rejected("decoder_params.best_of", f"is {params.best_of}, must be at least n = {ctx.n}")
    answers = [prompt] + [prompt.fork() for _ in range(params.best_of - 1)]
    tree = SearchTree(ctx, answers)
    await complete(ctx, answers, tree=tree)
    answers.sort(key=lambda answer: answer.mean_logprob, reverse=True)
    for index in range(ctx.n):
        ctx.publish(answers[index], index)
    tree.conclude(answers, scores=[answer.mean_logprob for answer in answers])
