"""Answers under a grammar, whichever decoder makes them; no decoder knows of grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pytest

from chatserve.decoding import Context, Decoder, Params, Sampling, Sequence, decoder
from chatserve.engine import GenerationRequest
from chatserve.errors import DecoderError, RequestError
from chatserve.models.batch import Float32Array, Int32Array
from chatserve.testing import END_TOKEN_ID, VOCAB_SIZE, RandomLogits, TrialEngine
from chatserve.text import Grammar
from chatserve.text.grammar import choice_grammar

BUILT_IN: list[Decoder] = [point.load() for point in entry_points(group="chatserve.decoders")]
PROMPT = tuple(b"Give me some JSON")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4, "pattern": "^[a-z]*$"},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["red", "green", None]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name", "size", "kind", "tags"],
    "additionalProperties": False,
}
JSON = Grammar("json_schema", json.dumps(SCHEMA))
ANYTHING = Grammar("regex", r"(?s:.*)")


class AsciiLogits(RandomLogits):
    """A random model that never leaves ASCII, so all its answers are valid text."""

    def __call__(self, context: Int32Array) -> Float32Array:
        row = super().__call__(context).copy()
        row[128:END_TOKEN_ID] = -np.inf
        row[END_TOKEN_ID + 1 :] = -np.inf
        return row


def request(grammar: Grammar | None, decoder: str = "sampling", **fields: Any) -> GenerationRequest:
    params = fields.pop("decoder_params", {})
    sampling = Sampling(**{"max_tokens": 400, "seed": 5, **fields})
    return GenerationRequest(
        prompt_token_ids=PROMPT, sampling=sampling, decoder=decoder, decoder_params=params, grammar=grammar
    )


def make_engine(decoders: Iterable[Decoder] = BUILT_IN, **limits: Any) -> TrialEngine:
    model = AsciiLogits(VOCAB_SIZE, end_token_ids=(END_TOKEN_ID,), end_bias=1.0)
    return TrialEngine(decoders, model, **{"num_blocks": 2000, **limits})


def check_json(text: str) -> None:
    """Whether the text is what `SCHEMA` says, in plain Python."""
    value = json.loads(text)
    assert list(value) == ["name", "size", "kind", "tags"]
    assert re.fullmatch("[a-z]{0,4}", value["name"])
    assert type(value["size"]) is int
    assert 0 <= value["size"] <= 99
    assert value["kind"] in ("red", "green", None)
    assert len(value["tags"]) <= 2
    assert all(type(tag) is bool for tag in value["tags"])


def params_of(name: str) -> dict[str, Any]:
    return {"prefix": "shared"} if name == "shared-prefix" else {}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", [decoder.name for decoder in BUILT_IN])
def test_every_decoder_gives_json_of_the_schema(name: str, temperature: float) -> None:
    engine = make_engine()
    engine.register_prefix("shared", tuple(b"Behind a prefix. "), lambda news: None)
    while engine.step():
        pass
    wanted = request(JSON, name, temperature=temperature, decoder_params=params_of(name))
    [record] = engine.run(wanted)
    [answer] = record.answers()
    assert answer.finish_reason == "stop"
    check_json(answer.text)


@pytest.mark.parametrize("name", [decoder.name for decoder in BUILT_IN if decoder.name != "shared-prefix"])
def test_a_grammar_that_allows_everything_changes_nothing(name: str) -> None:
    engine = make_engine()
    bound, free = engine.run(request(ANYTHING, name, max_tokens=60), request(None, name, max_tokens=60))
    assert bound.answers() == free.answers()


@pytest.mark.parametrize("name", ["beam", "diverse-beam", "best-of", "parallel"])
@pytest.mark.parametrize(("choices", "n"), [(["a"], 2), (["a", "b"], 4), (["a", "ab", "b"], 3)])
def test_more_choices_than_there_are_possible_answers(name: str, choices: list[str], n: int) -> None:
    """Where a search runs out of hypotheses the last one stands for the rest."""
    [record] = make_engine().run(request(choice_grammar(choices, "guided_choice"), name, n=n))
    answers = record.answers()
    assert len(answers) == n
    assert all(answer.text in choices and answer.finish_reason == "stop" for answer in answers)
    if name == "beam":
        assert {answer.text for answer in answers} == set(choices)


def test_several_choices_under_pressure() -> None:
    """Preemption, recomputation and chunked prefill leave the state of a grammar as it was."""
    quiet, pressed = make_engine(), make_engine(num_blocks=110, max_batch_tokens=16)
    requests = [request(JSON, "parallel", n=3, seed=seed) for seed in range(4)]
    calm = [record.answers() for record in quiet.run(*requests)]
    assert pressed.stats()["preemptions"] == 0
    assert [record.answers() for record in pressed.run(*requests)] == calm
    assert pressed.stats()["preemptions"] > 0
    for answers in calm:
        for answer in answers:
            check_json(answer.text)
    assert len({answer.text for answers in calm for answer in answers}) > 6


def test_beams_hold_no_forbidden_hypothesis() -> None:
    """A grammar with fewer answers than beams: the search ends with what there is, best first, all of it allowed."""
    engine = make_engine()
    texts = {"yes", "no", "maybe"}
    grammar = Grammar("regex", "|".join(texts))
    [record] = engine.run(request(grammar, "beam", n=3, decoder_params={"width": 8}))
    answers = record.answers()
    assert {answer.text for answer in answers} == texts
    for choice in range(3):
        assert all(
            token.logprob is None or np.isfinite(token.logprob) for delta in record.of(choice) for token in delta.tokens
        )


def test_min_tokens_gives_way_where_only_the_end_may_follow() -> None:
    engine = make_engine()
    [record] = engine.run(request(Grammar("regex", "ab"), min_tokens=10))
    [answer] = record.answers()
    assert (answer.text, answer.finish_reason) == ("ab", "stop")


def test_min_tokens_holds_where_the_text_can_go_on() -> None:
    engine = make_engine()
    [record] = engine.run(request(Grammar("regex", "a*"), min_tokens=10, max_tokens=50))
    assert len(record.answers()[0].token_ids) > 10


def test_the_length_may_cut_an_answer() -> None:
    [record] = make_engine().run(request(JSON, max_tokens=5))
    [answer] = record.answers()
    assert answer.finish_reason == "length"
    assert len(answer.token_ids) == 5


def test_a_stop_string_ends_an_answer_early() -> None:
    [record] = make_engine().run(request(JSON, stop=(":",)))
    [answer] = record.answers()
    assert re.fullmatch(r'\{\s*"name"\s*', answer.text)
    assert answer.finish_reason == "stop"


class Nothing(Params, frozen=True):
    """No parameters."""


@decoder("stubborn", params=Nothing)
async def stubborn(ctx: Context, prompt: Sequence, params: Nothing) -> None:
    """Appends what it likes."""
    await ctx.sample([prompt])
    prompt.append([*b"free text", END_TOKEN_ID])
    ctx.publish(prompt)


@decoder("guess", params=Nothing)
async def guess(ctx: Context, prompt: Sequence, params: Nothing) -> None:
    """Verifies nonsense before each token; scores both an allowed and a forbidden text."""
    scored = await ctx.score([prompt, prompt], [list(b"ab"), list(b"xy")])
    assert all(sample.logprob is not None and np.isfinite(sample.logprob) for sample in scored[0])
    assert scored[1][0].logprob == -np.inf
    while not prompt.ended:
        [samples] = await ctx.verify([prompt], [list(b"bbxyz")])
        prompt.append(samples)
        ctx.publish(prompt)


def test_a_decoder_that_leaves_the_grammar_fails_loudly() -> None:
    [record] = make_engine([stubborn]).run(request(JSON, "stubborn"))
    assert isinstance(record.error, DecoderError)
    assert "grammar" in str(record.error)


def test_drafts_that_the_grammar_forbids_are_rejected() -> None:
    engine = make_engine([*BUILT_IN, guess])
    grammar = Grammar("regex", "ab+")
    guessed, plain = engine.run(request(grammar, "guess", max_tokens=30), request(grammar, max_tokens=30))
    assert guessed.answers() == plain.answers()


@pytest.mark.parametrize(
    ("grammar", "fields", "param"),
    [
        (Grammar("json_schema", "false", "response_format"), {}, "response_format"),
        (Grammar("regex", "(", "guided_regex"), {}, "guided_regex"),
        (JSON, {"ignore_eos": True}, "ignore_eos"),
    ],
)
def test_what_can_never_be_followed_is_refused(grammar: Grammar, fields: dict[str, Any], param: str) -> None:
    engine = make_engine()
    with pytest.raises(RequestError) as refusal:
        engine.start(request(grammar, **fields))
    assert refusal.value.param == param
    engine.check_empty()
