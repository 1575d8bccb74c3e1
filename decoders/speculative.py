"""Speculative decoding by prompt lookup: draft what followed the last time, keep what sampling would have said."""

from typing import Annotated

from msgspec import Meta

from chatserve.decoding import Context, Params, Rejected, SearchTree, Sequence, decoder


class SpeculativeParams(Params, frozen=True):
    """Parameters of prompt lookup."""

    ngram: Annotated[int, Meta(ge=1, le=16, description="Longest run of tokens to look for in the context.")] = 3
    draft: Annotated[int, Meta(ge=1, le=64, description="Most tokens to draft at once.")] = 8


def look_up(tokens: list[int], ngram: int, count: int) -> list[int]:
    """What followed the last earlier occurrence of the final n-gram, at most `count` tokens; longest n-gram first."""
    for n in range(min(ngram, len(tokens) - 1), 0, -1):
        tail = tokens[-n:]
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start + n - 1] == tail[-1] and tokens[start : start + n] == tail:
                return tokens[start + n : start + n + count]
    return []


@decoder("speculative", params=SpeculativeParams)
async def speculative(ctx: Context, prompt: Sequence, params: SpeculativeParams) -> None:
    """Prompt lookup: draft by copying from the context, check all drafted tokens in one pass.

    Token for token what `sampling` gives for the same seed (and `greedy` at temperature 0), in fewer steps where the
    text repeats itself: each drafted position is drawn as sampling would, and kept while draw and draft agree.
    """
    if ctx.n > 1:
        raise Rejected("n", f"is {ctx.n}, but speculative decoding gives one answer")
    tree = SearchTree(ctx, [prompt])
    while not prompt.ended:
        draft = look_up(prompt.tokens, params.ngram, min(params.draft, ctx.max_tokens - prompt.num_generated - 1))
        [samples] = await ctx.verify([prompt], [draft])
        length, num_agreed = prompt.num_generated, len(samples) - 1
        prompt.append(samples)
        drawn = samples[: prompt.num_generated - length]  # without what lies behind an end
        tree.add(prompt, drawn[:num_agreed], "kept", prompt, drafted=True)
        tree.add(prompt, draft[num_agreed:], "dropped", drafted=True)
        tree.add(prompt, drawn[num_agreed:], "kept", prompt)
        tree.step()
        ctx.publish(prompt)
    tree.conclude([prompt])
