"""Records of sequences, and choices that grow from them: nothing published is taken back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatserve.decoding import Context, Sequence
from chatserve.errors import DecoderError
from chatserve.testing import END_TOKEN_ID
from tests.decoding.harness import PROMPT, answer, assert_empty, make_engine, request, run


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


def test_a_trace_is_what_it_was_when_it_was_told() -> None:
    async def tell(ctx: Context, seq: Sequence, params: Any) -> None:
        growing: list[object] = []
        for step in range(2):
            growing.append(step)
            ctx.trace(growing=growing)
        growing.append(object())  # nothing that a client could be sent
        seq.append(await ctx.sample([seq]))
        ctx.publish(seq)

    [completion] = run(make_engine(tell), request("tell", return_trace=True, max_tokens=1))
    assert completion.trace == [{"growing": [0]}, {"growing": [0, 1]}]
