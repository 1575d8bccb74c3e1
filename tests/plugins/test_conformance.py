"""The suite finds what it promises to find: each faulty decoder fails the test that is about its fault."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from chatserve.decoding import Context, Decoder, Params, Rejected, Sampling, Sequence, complete, decoder
from chatserve.engine import GenerationRequest
from chatserve.kv import IntegrityError
from chatserve.testing import DecoderConformance, RandomLogits, TrialEngine

_last_served: list[Sequence] = []


async def _sampled(ctx: Context, prompt: Sequence) -> None:
    """Plain sampling, for faults that lie elsewhere."""
    await complete(ctx, [prompt], publish=True)


@decoder("honest")
async def honest(ctx: Context, prompt: Sequence, params: Params) -> None:
    await _sampled(ctx, prompt)


@decoder("one-choice")
async def one_choice(ctx: Context, prompt: Sequence, params: Params) -> None:
    """Forgets the other choices instead of refusing them."""
    await _sampled(ctx, prompt)


@decoder("hoarder")
async def hoarder(ctx: Context, prompt: Sequence, params: Params) -> None:
    """Holds more sequences than it says."""
    spare = [prompt.fork() for _ in range(3)]
    await _sampled(ctx, prompt)
    assert spare


@decoder("dice")
async def dice(ctx: Context, prompt: Sequence, params: Params) -> None:
    """Has randomness of its own."""
    while not prompt.ended:
        top = await ctx.topk([prompt], 8)
        prompt.append(top.sample(0, random.randrange(8)))
        ctx.publish(prompt)


@decoder("impatient")
async def impatient(ctx: Context, prompt: Sequence, params: Params) -> None:
    """Streams the best draft so far, which may change."""
    drafts = [prompt, prompt.fork()]
    while not all(draft.ended for draft in drafts):
        live = [draft for draft in drafts if not draft.ended]
        for draft, sample in zip(live, await ctx.sample(live), strict=True):
            draft.append(sample)
        ctx.publish(max(drafts, key=lambda draft: draft.logprob))


@decoder("quitter")
async def quitter(ctx: Context, prompt: Sequence, params: Params) -> None:
    """Has had enough after three tokens, whatever the request says."""
    if ctx.n > 1:
        raise Rejected("n", "must be 1")
    await complete(ctx, [prompt], until=lambda sequence: sequence.num_generated == 3, publish=True)


@decoder("naive-beam", sequences=lambda params, n: 8)
async def naive_beam(ctx: Context, prompt: Sequence, params: Params) -> None:
    """Takes candidates of log-probability -inf when there are no others."""
    beams = [prompt]
    while not beams[0].ended:
        top = await ctx.topk(beams, 4)
        totals = np.array([beam.logprob for beam in beams])[:, None] + top.logprobs
        worst = np.argsort(totals, axis=None)[-4:]
        parents, beams = beams, []
        for flat in worst:
            row, column = divmod(int(flat), 4)
            child = parents[row].fork()
            beams.append(child)
            child.append(top.sample(row, column))
        for parent in parents:
            parent.free()
    ctx.publish(beams[0])


@decoder("raw")
async def raw(ctx: Context, prompt: Sequence, params: Params) -> None:
    """Looks at the model's own logits and so past logit_bias."""
    while not prompt.ended:
        rows = await ctx.logits([prompt], stage="raw")
        prompt.append(int(rows[0, -1].argmax()))
        ctx.publish(prompt)


@decoder("gossip")
async def gossip(ctx: Context, prompt: Sequence, params: Params) -> None:
    """Learns from requests that run beside it."""
    while not prompt.ended:
        top = await ctx.topk([prompt], 2)
        is_alone = _last_served[-1:] == [prompt]
        _last_served.append(prompt)
        prompt.append(top.sample(0, 0 if is_alone else 1))
        ctx.publish(prompt)


@decoder("twins", sequences=lambda params, n: n)
async def twins(ctx: Context, prompt: Sequence, params: Params) -> None:
    """Publishes one answer as every choice."""
    await complete(ctx, [prompt])
    for choice in range(ctx.n):
        ctx.publish(prompt, choice)


class StrictParams(Params, frozen=True):
    needed: int


@decoder("demanding", params=StrictParams)
async def demanding(ctx: Context, prompt: Sequence, params: StrictParams) -> None:
    """Has a parameter without default."""
    await _sampled(ctx, prompt)


def suite(tested: Decoder, **attributes: Any) -> DecoderConformance:
    return type("Suite", (DecoderConformance,), {"decoder": tested, **attributes})()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("tested", "attributes", "test"),
    [
        (demanding, {}, "parameters_are_accepted_and_unknown_ones_refused"),
        (one_choice, {}, "any_number_of_choices_is_served_or_refused"),
        (hoarder, {}, "it_holds_no_more_sequences_than_it_declares"),
        (dice, {}, "the_same_seed_gives_the_same_answer"),
        (twins, {"n": 2}, "choices_differ"),
        (quitter, {}, "answers_end_at_an_end_token"),
        (quitter, {}, "answers_end_at_max_tokens"),
        (quitter, {}, "answers_have_min_tokens"),
        (quitter, {}, "answers_end_at_stop_strings"),
        (naive_beam, {}, "forbidden_tokens_are_never_published"),
        (raw, {}, "logit_bias_forbids_tokens"),
        (impatient, {}, "published_tokens_are_never_taken_back"),
        (dice, {}, "log_probabilities_join_to_the_published_tokens"),
        (gossip, {}, "a_batch_gives_what_solo_runs_give"),
        (dice, {}, "a_small_token_budget_changes_nothing"),
        (dice, {}, "rows_deferred_at_random_change_nothing"),
        (dice, {}, "a_pool_so_small_that_it_is_preempted_changes_nothing"),
        (dice, {}, "preemption_at_random_changes_nothing"),
    ],
    ids=lambda value: value.name if isinstance(value, Decoder) else value if isinstance(value, str) else "",
)
def test_a_faulty_decoder_fails(tested: Decoder, attributes: dict[str, Any], test: str) -> None:
    with pytest.raises(AssertionError):
        getattr(suite(tested, **attributes), f"test_{test}")()


@pytest.mark.parametrize("test", [name for name, _ in DecoderConformance.titles() if "answers_" in name])
def test_a_decoder_with_end_rules_of_its_own_says_so(test: str) -> None:
    getattr(suite(quitter, ends_by_itself=True), test)()


def test_a_number_of_choices_that_is_refused_must_be_set_right() -> None:
    @decoder("single")
    async def single(ctx: Context, prompt: Sequence, params: Params) -> None:
        if ctx.n > 1:
            raise Rejected("n", "must be 1")
        await _sampled(ctx, prompt)

    suite(single).test_any_number_of_choices_is_served_or_refused()
    with pytest.raises(AssertionError, match="set `n` to a number that the decoder serves"):
        suite(single, n=2).test_any_number_of_choices_is_served_or_refused()


def test_an_engine_that_leaks_or_talks_after_the_end_is_found() -> None:
    """The parts of the suite that built-in decoders cannot fail: an engine with these faults would."""

    class Leaking(TrialEngine):
        def _release(self, request: Any) -> None:
            request.is_finished = True
            self.scheduler.remove(request)
            self.requests.pop(request)

    given = GenerationRequest(
        prompt_token_ids=(1, 2, 3), sampling=Sampling(max_tokens=3, seed=1, ignore_eos=True), decoder="honest"
    )
    with pytest.raises(IntegrityError, match="block"):
        Leaking([honest], RandomLogits(260)).run(given)
    [record] = TrialEngine([honest], RandomLogits(260)).run(given)
    assert [len(answer.token_ids) for answer in record.answers()] == [3]
    record(None)
    with pytest.raises(AssertionError, match="news after the end"):
        record.answers()
