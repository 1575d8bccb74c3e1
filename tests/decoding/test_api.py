"""Every public method of `Sequence` and `Context`, through the real engine, against the model's own function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatserve.decoding import Context, Sample, Sampling, Sequence, common_length, complete, derive_seed
from chatserve.errors import DecoderError, RequestError
from chatserve.testing import END_TOKEN_ID, VOCAB_SIZE, RandomLogits, Script
from tests.decoding.harness import PROMPT, answer, assert_empty, make_engine, model, request, run
from tests.decoding.naive import log_softmax, processed


def row_of(tokens: list[int], **options: Any) -> Any:
    """The model's own logits behind these tokens."""
    return model(**options)(np.array(tokens, np.int32))


async def speak(ctx: Context, seq: Sequence, params: Any) -> None:
    """Plain sampling."""
    while not seq.ended:
        seq.append(await ctx.sample([seq]))
        ctx.publish(seq)


# forks and their random streams


def test_forks_made_before_their_parent_was_computed_prefill_once() -> None:
    async def fork_first(ctx: Context, prompt: Sequence, params: Any) -> None:
        forks = [prompt.fork() for _ in range(4)]
        for seq, sample in zip(forks, await ctx.sample(forks), strict=True):
            seq.append(sample)
        await ctx.sample(forks)
        ctx.publish(forks[0])

    engine = make_engine(fork_first)
    run(engine, request("fork_first", range(50)))
    assert engine.runner.num_tokens == 50 + 4  # type: ignore[attr-defined]


@pytest.mark.parametrize("max_batch_tokens", [7, 512])
def test_forks_of_forks_that_were_never_computed_prefill_each_token_once(max_batch_tokens: int) -> None:
    async def tree(ctx: Context, prompt: Sequence, params: Any) -> None:
        left, right = prompt.fork(), prompt.fork()
        left.append([1, 2, 3])
        right.append([4, 5])
        leaves = [left.fork(), right.fork(), left.fork(), right.fork()]
        for number, leaf in enumerate(leaves):
            leaf.append(10 + number)
        await ctx.sample(leaves)
        ctx.publish(leaves[0])

    engine = make_engine(tree, max_batch_tokens=max_batch_tokens)
    run(engine, request("tree", range(30)))
    assert engine.runner.num_tokens == 30 + (3 + 2) + 4  # type: ignore[attr-defined]


@pytest.mark.parametrize("end", ["free", "truncate", "both led"])
def test_who_made_a_fork_point_may_end_without_making_others_forget_who_computed_it(end: str) -> None:
    """The first fork computes the prompt, so it leads from then on; its parent, who led first, never had the KV."""

    async def stale(ctx: Context, prompt: Sequence, params: Any) -> None:
        prompt.append([7, 8])
        first, second, third = prompt.fork(), prompt.fork(), prompt.fork()
        await ctx.sample([first])
        if end == "truncate":
            prompt.truncate(40)
        else:
            prompt.free()
        await ctx.sample([second])
        if end == "both led":
            first.free()
        await ctx.sample([second, third])
        ctx.publish(third)

    engine = make_engine(stale, prefix_caching=False)
    run(engine, request("stale", range(40), max_tokens=9))
    assert engine.runner.num_tokens == 42 + 1 + 1  # type: ignore[attr-defined]


def test_siblings_draw_differently_and_a_fork_draws_as_a_request_with_the_derived_seed() -> None:
    async def third(ctx: Context, prompt: Sequence, params: Any) -> None:
        forks = [prompt.fork() for _ in range(3)]
        await complete(ctx, forks)
        assert len({tuple(seq.generated) for seq in forks}) == 3
        ctx.publish(forks[2])

    expected = answer(speak, seed=derive_seed(9, 3), max_tokens=12)
    assert answer(third, seed=9, max_tokens=12) == expected


def test_a_fork_copies_the_record_and_leaves_its_parent_alone() -> None:
    async def copy(ctx: Context, prompt: Sequence, params: Any) -> None:
        prompt.append(await ctx.sample([prompt]))
        prompt.append([7, 8])
        child = prompt.fork()
        assert (child.tokens, child.samples, child.logprob) == (prompt.tokens, prompt.samples, prompt.logprob)
        assert (child.prompt_len, child.ended) == (len(PROMPT), None)
        child.append(9)
        prompt.truncate(len(PROMPT))
        assert child.generated[1:] == [7, 8, 9]
        assert prompt.generated == []
        ctx.publish(child)

    assert answer(copy, max_tokens=9)[1:] == [7, 8, 9]


def test_a_retry_behind_taken_back_draws_is_fresh_and_behind_forced_tokens_it_is_the_same() -> None:
    async def retry(ctx: Context, prompt: Sequence, params: Any) -> None:
        [first] = await ctx.sample([prompt])
        prompt.append(5)
        prompt.truncate(len(PROMPT))
        assert (await ctx.sample([prompt])) == [first]
        drawn = []
        for _ in range(4):
            [sample] = await ctx.sample([prompt])
            drawn.append(sample.token)
            prompt.append(sample)
            prompt.truncate(len(PROMPT))
        assert len(set(drawn)) > 1
        ctx.publish(prompt)

    assert answer(retry, max_tokens=9, seed=4) == []


def test_a_sequence_named_several_times_is_one_row_and_independent_draws() -> None:
    async def repeat(ctx: Context, prompt: Sequence, params: Any) -> None:
        samples = await ctx.sample([prompt] * 16)
        assert len({sample.token for sample in samples}) > 5
        prompt.append(samples[3])
        ctx.publish(prompt)

    engine = make_engine(repeat)
    run(engine, request("repeat"))
    assert engine.runner.num_tokens == len(PROMPT)  # type: ignore[attr-defined]


def test_naming_a_sequence_with_nothing_new_costs_one_token_and_no_block() -> None:
    async def stare(ctx: Context, prompt: Sequence, params: Any) -> None:
        first = await ctx.logits([prompt])
        child = prompt.fork()
        for _ in range(3):
            assert np.array_equal(await ctx.logits([child]), first)
        ctx.publish(prompt)

    engine = make_engine(stare, num_blocks=2)
    run(engine, request("stare"))
    assert engine.runner.num_tokens == len(PROMPT) + 3  # type: ignore[attr-defined]


# verify, score, logits, topk, draw

SPECULATIVE = [
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.0},
    {"top_k": 3},
    {"top_p": 0.7},
    {"min_p": 0.05},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"repetition_penalty": 1.4},
    {"stop": ("BA", "AAB")},
    {"min_tokens": 8, "stop": ("B",)},
    {"logit_bias": {65: -2.0, 70: 6.0}},
]


@pytest.mark.parametrize("sampling", SPECULATIVE, ids=str)
def test_verified_drafts_are_what_plain_sampling_draws(sampling: dict[str, Any]) -> None:
    """Drafts of two favoured letters: some are right, most of them not to the end."""
    logits = model(end_token_ids=(65, 66, END_TOKEN_ID), end_bias=8.0)
    num_accepted = []

    async def draft(ctx: Context, seq: Sequence, params: Any) -> None:
        while not seq.ended:
            guess = [65 + (len(seq) + i) % 2 for i in range(len(seq) % 6)]
            [samples] = await ctx.verify([seq], [guess])
            num_accepted.append(len(samples) - 1)
            seq.append(samples)
            ctx.publish(seq)

    for seed in range(4):
        fields = {"seed": seed, "max_tokens": 20, **sampling}
        assert answer(draft, logits=logits, **fields) == answer(speak, logits=logits, **fields)
    assert max(num_accepted) > 0


def test_verifying_keeps_the_kv_of_what_was_agreed() -> None:
    script = Script(list(range(100, 120)), vocab_size=VOCAB_SIZE, end_token_id=END_TOKEN_ID)

    async def draft(ctx: Context, seq: Sequence, params: Any) -> None:
        while not seq.ended:
            done = seq.num_generated
            [samples] = await ctx.verify([seq], [[100 + done, 101 + done, 102 + done]])
            seq.append(samples)
        ctx.publish(seq)

    engine = make_engine(draft, logits=script)
    [completion] = run(engine, request("draft", temperature=0, max_tokens=16))
    assert completion.outputs[0].token_ids == list(range(100, 116))
    assert engine.runner.num_tokens == len(PROMPT) + 3 + 3 * 4  # type: ignore[attr-defined]


def test_scores_are_the_log_softmax_of_the_models_own_rows_and_change_nothing() -> None:
    async def judge(ctx: Context, prompt: Sequence, params: Any) -> None:
        prompt.append([3, 4])
        probe = prompt.fork()
        answers = await ctx.score([prompt, probe, prompt], [[9], [9, 8, 7], [1, 2]])
        for seq, continuation, scored in zip([prompt, probe, prompt], [[9], [9, 8, 7], [1, 2]], answers, strict=True):
            assert [sample.token for sample in scored] == continuation
            expected = [
                log_softmax(row_of(seq.tokens + continuation[:i]))[token] for i, token in enumerate(continuation)
            ]
            assert [sample.logprob for sample in scored] == pytest.approx(expected, abs=1e-4)
        assert prompt.generated == probe.generated == [3, 4]
        ctx.publish(prompt)

    assert answer(judge, max_tokens=5) == [3, 4]


@pytest.mark.parametrize("max_batch_tokens", [2, 512])
def test_log_probability_rows_of_every_stage(max_batch_tokens: int) -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": 4,
        "presence_penalty": 1.0,
        "repetition_penalty": 1.3,
        "logit_bias": {9: 5.0},
    }

    async def look(ctx: Context, prompt: Sequence, params: Any) -> None:
        prompt.append([20, 21, 20, 9])
        contexts = [prompt[:end] for end in range(len(prompt) - 2, len(prompt) + 1)]
        rows = {stage: await ctx.logits([prompt], last=3, stage=stage) for stage in ("raw", "processed", "warped")}
        assert {(row.shape, row.dtype.name) for row in rows.values()} == {((1, 3, VOCAB_SIZE), "float32")}
        for offset, tokens in enumerate(contexts):
            logits = row_of(tokens)
            assert np.allclose(rows["raw"][0, offset], log_softmax(logits), atol=1e-4)
            expected = log_softmax(processed(logits, Sampling(**fields), tokens, len(PROMPT)))
            assert np.allclose(rows["processed"][0, offset], expected, atol=1e-4)
            best = np.argsort(-expected, kind="stable")[:4]
            warped = np.full(VOCAB_SIZE, -np.inf)
            warped[best] = log_softmax(expected[best] / 0.5)
            assert np.allclose(rows["warped"][0, offset], warped, atol=1e-4)
        ctx.publish(prompt)

    run(make_engine(look, max_batch_tokens=max_batch_tokens), request("look", max_tokens=6, **fields))


def test_the_best_candidates_come_in_order_and_ties_by_lower_id() -> None:
    class Flat:
        vocab_size = VOCAB_SIZE

        def __call__(self, context: Any) -> Any:
            row = np.zeros(VOCAB_SIZE, np.float32)
            row[[200, 50]] = 3.0
            row[120] = 4.0
            return row

    async def rank(ctx: Context, prompt: Sequence, params: Any) -> None:
        for k in (5, VOCAB_SIZE):
            top = await ctx.topk([prompt, prompt], k)
            assert top.tokens.shape == top.logprobs.shape == (2, k)
            assert top.tokens[1, :5].tolist() == [120, 50, 200, 0, 1]
        assert np.allclose(top.logprobs[0, :3], log_softmax(Flat()(None))[[120, 50, 200]], atol=1e-5)
        sample = top.sample(0, 1)
        assert (sample.token, sample.logprob) == (50, top.logprobs[0, 1])
        assert [token for token, _ in sample.top] == [120, 50]
        prompt.append(sample)
        ctx.publish(prompt)

    assert answer(rank, logits=Flat(), top_logprobs=2) == [50]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0}, {"top_p": 0.6}, {"presence_penalty": 1.5}], ids=str)
def test_drawing_from_the_raw_row_is_sampling(sampling: dict[str, Any]) -> None:
    async def by_hand(ctx: Context, seq: Sequence, params: Any) -> None:
        while not seq.ended:
            [[row]] = await ctx.logits([seq], stage="raw")
            seq.append(ctx.draw(seq, row))
            ctx.publish(seq)

    fields = {"max_tokens": 12, "seed": 6, **sampling}
    assert answer(by_hand, **fields) == answer(speak, **fields)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0}, {"top_k": 2, "presence_penalty": 1.5}], ids=str)
@pytest.mark.parametrize("num_top", [None, 0, 1, 4])
def test_a_draw_by_hand_comes_with_the_alternatives_asked_for(num_top: int | None, sampling: dict[str, Any]) -> None:
    async def by_hand(ctx: Context, seq: Sequence, params: Any) -> None:
        while not seq.ended:
            [plain] = await ctx.sample([seq.fork()])
            [[row]] = await ctx.logits([seq], stage="raw")
            sample = ctx.draw(seq, row)
            expected = log_softmax(processed(row_of(seq.tokens), Sampling(**sampling), seq.tokens, len(PROMPT)))
            best = np.argsort(-expected, kind="stable")[: num_top or 0]
            assert [token for token, _ in sample.top] == best.tolist() == [token for token, _ in plain.top]
            assert [logprob for _, logprob in sample.top] == pytest.approx(expected[best], abs=1e-4)
            assert sample.logprob == pytest.approx(expected[sample.token], abs=1e-4)
            seq.append(sample)
            ctx.publish(seq)

    [completion] = run(make_engine(by_hand), request("by_hand", max_tokens=6, top_logprobs=num_top, **sampling))
    if num_top is not None:
        assert {len(token.top) for token in completion.outputs[0].tokens} == {num_top}


def test_alternatives_of_a_draw_with_ties_and_forbidden_tokens_come_by_lower_id() -> None:
    async def tie(ctx: Context, seq: Sequence, params: Any) -> None:
        row = np.full(VOCAB_SIZE, -np.inf)
        row[[200, 50]] = 3.0
        assert [token for token, _ in ctx.draw(seq, row).top] == [50, 200, 0, 1]
        ctx.publish(seq)

    answer(tie, top_logprobs=4)


@pytest.mark.parametrize("asks_for_top", [None, 3])
def test_a_row_of_which_processing_forbids_every_token_is_refused(asks_for_top: int | None) -> None:
    """The row allows the end token alone, which is impossible before `min_tokens`; afterwards it is drawn."""

    async def only_the_end(ctx: Context, seq: Sequence, params: Any) -> None:
        row = np.full(VOCAB_SIZE, -np.inf, np.float32)
        row[END_TOKEN_ID] = 2.0
        for _ in range(2):
            with pytest.raises(DecoderError, match="draw: every token is forbidden"):
                ctx.draw(seq, row)
            seq.append(65)
        assert row[END_TOKEN_ID] == 2.0  # the decoder's own array is left alone
        sample = ctx.draw(seq, row)
        assert sample[:2] == (END_TOKEN_ID, 0.0)
        assert seq.append(sample) == "stop"
        ctx.publish(seq)

    assert answer(only_the_end, min_tokens=2, max_tokens=5, top_logprobs=asks_for_top) == [65, 65, END_TOKEN_ID]


def test_overrides_hold_for_one_await_only() -> None:
    async def cool(ctx: Context, seq: Sequence, params: Any) -> None:
        [cold] = await ctx.sample([seq], temperature=0)
        [best] = await ctx.sample([seq], top_k=1)
        assert cold.token == best.token == row_of(seq.tokens).argmax()
        seq.append([cold, *await ctx.sample([seq])])
        ctx.publish(seq)

    assert len(answer(cool, max_tokens=5, temperature=1.0)) == 2


# prompts of the decoder's own


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


# records


def test_append_stops_at_an_end_and_truncate_takes_it_back() -> None:
    async def ends(ctx: Context, seq: Sequence, params: Any) -> None:
        assert seq.append([1, END_TOKEN_ID, 2]) == "stop"
        assert seq.generated == [1, END_TOKEN_ID]
        assert seq.num_generated == 2
        seq.truncate(len(PROMPT) + 1)
        assert seq.ended is None
        assert seq.append(ctx.tokenize("xSTOPy")) == "stop"
        assert seq.text == "\x01x"
        seq.truncate(len(PROMPT))
        assert seq.append([7] * 9) == "length"
        assert (seq.generated, ctx.max_tokens) == ([7] * 6, 6)
        assert ctx.end_tokens == (END_TOKEN_ID,)
        ctx.publish(seq)

    assert answer(ends, max_tokens=6, stop=("STOP",)) == [7] * 6


def test_forced_tokens_have_no_logprob_and_count_zero() -> None:
    async def template(ctx: Context, seq: Sequence, params: Any) -> None:
        seq.append(ctx.tokenize("a:"))
        [sample] = await ctx.sample([seq])
        seq.append([sample, 59])
        assert [sample.logprob is None for sample in seq.samples] == [True, True, False, True]
        assert seq.logprob == sample.logprob
        assert seq.mean_logprob == pytest.approx(seq.logprob / 4)
        ctx.publish(seq)

    [completion] = run(make_engine(template), request("template", top_logprobs=1, ignore_eos=True))
    assert [token.logprob is None for token in completion.outputs[0].tokens] == [True, True, False, True]


def test_a_freed_sequence_stays_readable_and_publishable() -> None:
    async def late(ctx: Context, prompt: Sequence, params: Any) -> None:
        child = prompt.fork()
        child.append(ctx.tokenize("kept"))
        child.free()
        assert (child.text, len(child), child[-1], child.is_freed) == ("kept", len(PROMPT) + 4, ord("t"), True)
        await ctx.sample([prompt])
        ctx.publish(child)

    assert bytes(answer(late)) == b"kept"


# publishing


def test_publishing_extends_streams_and_ends_a_choice_once() -> None:
    async def stream(ctx: Context, seq: Sequence, params: Any) -> None:
        other = seq.fork()
        seq.append(ctx.tokenize("abc"))
        ctx.publish(seq, length=1)
        await ctx.sample([seq])
        ctx.publish(seq)
        ctx.publish(seq, length=2)  # a shorter prefix
        other.append(ctx.tokenize("ab"))
        ctx.publish(other)  # the same, of another sequence
        await ctx.sample([seq])
        seq.append(END_TOKEN_ID)
        ctx.publish(seq, length=3)
        await ctx.sample([other])
        ctx.publish(seq)
        ctx.finish(0, "length")  # it has ended already

    heard: list[Any] = []
    engine = make_engine(stream)
    engine.submit(request("stream"), heard.append)
    while engine.step():
        pass
    assert_empty(engine)
    assert heard.pop() is None
    assert [(delta.text, delta.finish_reason) for delta in heard] == [("a", None), ("bc", None), ("", "stop")]


_LETTERS = st.lists(st.integers(97, 98), min_size=1, max_size=4)
_WHICH = st.integers(0, 1)
_PUBLISH = st.tuples(st.just("publish"), _WHICH, st.one_of(st.none(), st.integers(0, 4)))
_ACTIONS = st.lists(
    st.one_of(
        _PUBLISH,
        _PUBLISH,
        _PUBLISH,
        st.tuples(st.just("append"), _WHICH, _LETTERS),
        st.tuples(st.just("truncate"), _WHICH, st.integers(0, 4)),
    ),
    min_size=6,
    max_size=16,
)


@given(contents=st.tuples(_LETTERS, _LETTERS), actions=_ACTIONS)
@settings(max_examples=200, deadline=None)
def test_what_is_published_only_grows_whatever_it_is_published_from(
    contents: tuple[list[int], ...], actions: list[tuple[str, int, Any]]
) -> None:
    """The oracle is one list: a publish is refused just when it contradicts that list."""
    promised: list[int] = []

    def publish(ctx: Context, seq: Sequence, length: int | None) -> None:
        offered = seq.generated[:length]
        common = min(len(offered), len(promised))
        if offered[:common] == promised[:common]:
            ctx.publish(seq, length=length)
            promised.extend(offered[common:])
        else:
            with pytest.raises(DecoderError, match=r"has published token \d+ at position \d+; it cannot become"):
                ctx.publish(seq, length=length)

    async def act(ctx: Context, prompt: Sequence, params: Any) -> None:
        live = [prompt.fork() for _ in contents]
        for seq, content in zip(live, contents, strict=True):
            seq.append(content)
        for action, index, argument in actions:
            seq = live[index]
            if action == "append":
                seq.append(argument)
            elif action == "truncate":
                seq.truncate(max(seq.prompt_len, len(seq) - argument))
            else:
                publish(ctx, seq, argument)
        ctx.publish(prompt, length=0)

    assert answer(act, max_tokens=500) == promised


def test_a_decoder_may_end_a_choice_by_itself() -> None:
    async def enough(ctx: Context, seq: Sequence, params: Any) -> None:
        seq.append(ctx.tokenize("two"))
        ctx.publish(seq, 1)
        ctx.finish(1, "length")
        ctx.publish(seq, 0, length=2)

    [completion] = run(make_engine(enough), request("enough", n=2))
    assert [(out.text, out.finish_reason) for out in completion.outputs] == [("tw", "stop"), ("two", "length")]


def test_a_decoder_that_awaits_on_after_all_choices_ended_is_closed() -> None:
    closed = []

    async def linger(ctx: Context, seq: Sequence, params: Any) -> None:
        try:
            while True:
                await ctx.sample([seq])
                ctx.publish(seq)
                ctx.finish()
        finally:
            closed.append(seq.is_freed)

    run(make_engine(linger), request("linger"))
    assert closed == [False]  # `finally` sees a live sequence


def test_traces_reach_the_client_who_asked() -> None:
    async def tell(ctx: Context, seq: Sequence, params: Any) -> None:
        for step in range(3):
            ctx.trace(step=step)
            seq.append(await ctx.sample([seq]))
            ctx.publish(seq)

    def traced(wanted: bool) -> list[Any]:
        asked = request("tell", return_trace=wanted, max_tokens=9, ignore_eos=True)
        return run(make_engine(tell), asked)[0].trace

    assert traced(True) == [{"step": 0}, {"step": 1}, {"step": 2}]
    assert traced(False) == []


# gather and the library


def test_gathered_searches_advance_in_lockstep_and_nest() -> None:
    order: list[tuple[str, int]] = []

    async def walk(ctx: Context, seq: Sequence, name: str, length: int) -> str:
        for step in range(length):
            order.append((name, step))
            seq.append(await ctx.sample([seq]))
        return name

    async def both(ctx: Context, prompt: Sequence, params: Any) -> None:
        a, b, c = prompt.fork(), prompt.fork(), prompt.fork()
        inner = ctx.gather(walk(ctx, b, "b", 3), walk(ctx, c, "c", 1))
        results = await ctx.gather(walk(ctx, a, "a", 2), inner, ctx.sample([prompt]))
        assert results[:2] == ["a", ["b", "c"]]
        assert isinstance(results[2][0], Sample)
        ctx.publish(a)

    engine = make_engine(both)
    run(engine, request("both", max_tokens=9, ignore_eos=True))
    assert order == [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 1), ("b", 2)]
    assert engine.statistics.num_steps == 3


def test_the_first_error_in_a_gather_closes_the_others_and_goes_up() -> None:
    closed = []

    async def patient(ctx: Context, seq: Sequence, name: str) -> None:
        try:
            while True:
                await ctx.sample([seq])
        finally:
            closed.append(name)

    async def hasty(ctx: Context, seq: Sequence) -> None:
        await ctx.sample([seq])
        raise LookupError("enough")

    async def parent(ctx: Context, prompt: Sequence, params: Any) -> None:
        with pytest.raises(LookupError, match="enough"):
            await ctx.gather(patient(ctx, prompt, "a"), hasty(ctx, prompt), patient(ctx, prompt, "b"))
        assert closed == ["a", "b"]
        prompt.append(await ctx.sample([prompt]))
        ctx.publish(prompt)

    assert len(answer(parent)) == 1


def test_completing_stops_each_sequence_where_it_is_told() -> None:
    async def until(ctx: Context, prompt: Sequence, params: Any) -> None:
        forks = [prompt.fork() for _ in range(3)]
        await complete(ctx, forks, until=lambda seq: seq.num_generated == 4 or seq.tokens[-1] < 80)
        assert all(seq.ended or seq.num_generated == 4 or seq[-1] < 80 for seq in forks)
        assert all(token >= 80 for seq in forks for token in seq.generated[:-1])
        ctx.publish(forks[0])

    assert answer(until, max_tokens=20)


def test_common_length_counts_generated_tokens() -> None:
    async def compare(ctx: Context, prompt: Sequence, params: Any) -> None:
        prompt.append([1, 2])
        first, second = prompt.fork(), prompt.fork()
        first.append([3, 4])
        second.append([3, 5, 6])
        assert common_length([first]) == 4
        assert common_length([first, second]) == 3
        assert common_length([first, second, prompt]) == 2
        ctx.publish(prompt)

    assert answer(compare) == [1, 2]


def test_random_logits_are_asked_for_the_exact_context() -> None:
    """Greedy through the decoder API is the argmax of the function itself."""
    logits = RandomLogits(VOCAB_SIZE, seed=77)
    generated = answer(speak, logits=logits, temperature=0, max_tokens=10, ignore_eos=True)
    context = list(PROMPT)
    for token in generated:
        assert token == logits(np.array(context, np.int32)).argmax()
        context.append(token)
