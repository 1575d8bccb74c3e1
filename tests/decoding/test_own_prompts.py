"""Prompts of a decoder's own: suffixes, second prompts and registered prefixes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chatserve.decoding import Context, Sequence, complete
from chatserve.errors import RequestError
from tests.decoding.harness import PROMPT, answer, assert_empty, make_engine, request, row_of, run
from tests.decoding.naive import log_softmax


def test_a_suffix_shares_the_kv_of_its_parent() -> None:
    async def probe(ctx: Context, prompt: Sequence, params: Any) -> None:
        prompt.append(await ctx.sample([prompt]))
        question = ctx.sequence(ctx.tokenize("ok?"), parent=prompt)
        assert question.tokens == [*prompt.tokens, *b"ok?"]
        assert (question.prompt_len, question.generated, question.logprob) == (len(prompt) + 3, [], 0.0)
        question.append(await ctx.sample([question]))
        assert question.num_generated == 1
        ctx.publish(prompt)

    engine = make_engine(probe)
    run(engine, request("probe", range(40)))
    assert engine.runner.num_tokens == 40 + 1 + 3  # type: ignore[attr-defined]


def test_a_second_prompt_is_answered_for_itself() -> None:
    async def other(ctx: Context, prompt: Sequence, params: Any) -> None:
        second = ctx.sequence([1, 2, 3])
        with ctx.sequence([4, 5]) as third:
            assert third.prompt_len == 2
        assert third.is_freed
        await complete(ctx, [second])
        ctx.publish(second)

    async def alone(ctx: Context, prompt: Sequence, params: Any) -> None:
        await complete(ctx, [prompt], publish=True)

    assert answer(other, temperature=0, max_tokens=7) == answer(alone, [1, 2, 3], temperature=0, max_tokens=7)


def test_a_prefix_is_a_prompt_of_the_requests_own_that_shares_what_was_computed() -> None:
    tokens = list(range(100, 122))

    async def behind(ctx: Context, prompt: Sequence, params: Any) -> None:
        with ctx.prefix("p") as first, ctx.prefix("p") as second:
            for prefix in (first, second):
                assert (prefix.tokens, prefix.prompt_len, prefix.generated) == (tokens, 22, [])
            assert np.allclose((await ctx.logits([first]))[0, 0], log_softmax(row_of(tokens)), atol=1e-4)
            samples = await ctx.sample([first, second])
            assert samples[0] != samples[1]  # each has a random stream of its own
            whole = ctx.sequence(prompt.tokens, parent=first)
            assert first.append([1, 2]) is None
        assert first.is_freed
        assert (whole.tokens, whole.prompt_len) == ([*tokens, *prompt.tokens], 22 + len(prompt))
        whole.append(await ctx.sample([whole], temperature=0))
        ctx.publish(whole)

    engine = make_engine(behind)
    engine.register_prefix("p", tuple(tokens), lambda news: None)
    while engine.step():
        pass
    heard: list[Any] = []
    engine.submit(request("behind", max_tokens=4, seed=5), heard.append)
    while engine.step():
        pass
    assert heard[-1] is None
    assert engine.runner.num_tokens == 22 + (1 + 1) + len(PROMPT)  # type: ignore[attr-defined]
    engine.prefixes.remove("p")
    assert_empty(engine)


def test_an_unknown_prefix_is_refused_with_the_names_there_are() -> None:
    async def lost(ctx: Context, prompt: Sequence, params: Any) -> None:
        ctx.prefix("manners")

    engine = make_engine(lost)
    engine.register_prefix("p", (1, 2, 3), lambda news: None)
    while engine.step():
        pass
    with pytest.raises(RequestError, match="prefix 'manners' is not registered; registered are: p"):
        engine.submit(request("lost"), lambda news: None)
    engine.prefixes.remove("p")
    assert_empty(engine)
