"""Grammars: what is refused when they are compiled, and what they allow behind any tokens, in any order of asking."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatserve.errors import RequestError
from chatserve.testing import END_TOKEN_ID, VOCAB_SIZE, byte_vocabulary
from chatserve.text import Grammar, Vocabulary
from chatserve.text.grammar import choice_grammar
from chatserve.text.grammar_state import GrammarState

VOCABULARY = byte_vocabulary()


def state(kind: str, source: str) -> GrammarState:
    return GrammarState(VOCABULARY.grammars.compile(Grammar(kind, source)), VOCAB_SIZE)  # type: ignore[arg-type]


def allowed_after(grammar: GrammarState, text: str | bytes) -> set[int]:
    allowed = grammar.allowed(list(text.encode() if isinstance(text, str) else text))
    assert allowed is not None
    return set(np.flatnonzero(allowed.tokens).tolist())


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"type": "strin"},
        {"enum": []},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "integer", "minimum": 5, "maximum": 2},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"$ref": "https://example.org/schema"},
        {"type": "array", "uniqueItems": True},
        {"type": "string", "pattern": "(?=a)b"},
        {"type": "string", "pattern": "("},
        {"$ref": "#/$defs/d0", "$defs": {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(5000)}},
        "not an object",
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_a_schema_that_cannot_be_followed_is_refused_and_named(schema: object) -> None:
    with pytest.raises(RequestError) as refusal:
        VOCABULARY.grammars.compile(Grammar("json_schema", json.dumps(schema), "response_format"))
    assert refusal.value.param == "response_format"
    assert refusal.value.message.startswith("response_format ")
    assert len(refusal.value.message) < 400


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("regex", "("),
        ("regex", r"\b"),
        ("regex", r"[^\s\S]"),
        ("regex", "(" * 5000 + ")" * 5000),
        ("regex", "x" * 20_000),
        ("lark", "start: " + "A " * 10_000 + "\nA: /(a|b)*/"),
        ("json_schema", json.dumps({"patternProperties": {"(a|b)*" * 4000: True}})),
        ("lark", ""),
        ("lark", "start: nothing"),
        ("lark", "start: ("),
        ("lark", "start: " + "(" * 5000 + '"a"' + ")" * 5000),
        ("lark", "start: r0\n" + "".join(f'r{i}: r{i + 1} "a"\n' for i in range(5000)) + 'r5000: "b"'),
        ("lark", "sampling"),
        ("lark", "root ::= " + "(" * 50_000),
        ("lark", 'root ::= "a'),
        ("json_schema", "{"),
        ("json_schema", ""),
    ],
    ids=lambda text: text[:20],
)
def test_other_grammars_that_are_refused(kind: str, source: str) -> None:
    with pytest.raises(RequestError):
        state(kind, source)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        *(("regex", source) for source in ("(a{100}){100}{100}", "(.*a){20}(.*b){50}", "[a-z]{1,2000}", "a{1000000}")),
        *(("regex", f"{part}*" * (120_000 // len(part))) for part in ("(a|b)", "(foo|bar)", "[ab]")),
        *(("regex", f"{part}*" * (16_000 // (len(part) + 1))) for part in ("(a|b)", "(foo|bar)", "[ab]")),
        ("lark", "start: " + "A " * 8000 + "\nA: /(a|b)*/"),
        ("lark", "start: B\nB: " + " ".join(f'"{"ab" * 400}"' for _ in range(140))),
        ("json_schema", json.dumps({"type": "string", "pattern": "(a|b)*" * 2700})),
        ("json_schema", json.dumps({"properties": {f"key{i}": {"type": "integer"} for i in range(3500)}})),
    ],
    ids=lambda text: text[:20],
)
def test_compiling_and_masking_take_bounded_time(kind: str, source: str) -> None:
    start = time.thread_time()
    with contextlib.suppress(RequestError):
        grammar = state(kind, source)
        for tokens in (b"", b"a", b"ab", b"{", b'"a'):
            grammar.allowed(list(tokens))
    assert time.thread_time() - start < 5, "seconds of this thread; without limits it is a minute and more"


def test_many_choices_are_possible() -> None:
    texts = [f"label {i * 7919}" for i in range(4000)]
    grammar = GrammarState(VOCABULARY.grammars.compile(choice_grammar(texts, "guided_choice")), VOCAB_SIZE)
    assert grammar.accepts(list(texts[-1].encode()))
    assert not grammar.accepts(list(b"label"))


def test_the_end_is_allowed_only_where_the_text_is_complete() -> None:
    grammar = state("regex", "ab*")
    assert allowed_after(grammar, "") == {ord("a")}
    assert allowed_after(grammar, "abb") == {ord("b"), END_TOKEN_ID}
    assert not grammar.accepts([])
    assert grammar.accepts(list(b"abbb"))
    assert grammar.allowed(list(b"abx")) is None
    assert not grammar.accepts(list(b"abx"))


def test_what_must_end() -> None:
    grammar = state("regex", "ab")
    complete = grammar.allowed(list(b"ab"))
    assert complete is not None
    assert complete.may_end
    assert complete.must_end
    assert set(np.flatnonzero(complete.tokens)) == {END_TOKEN_ID}


def test_white_space_in_json_is_bounded() -> None:
    grammar = state("json_schema", '{"type": "object"}')
    assert grammar.accepts(list(json.dumps({"a": [1, {"b": None}]}, indent=4).encode()))
    assert ord(" ") not in allowed_after(grammar, "{" + " " * 20)
    assert ord("\n") not in allowed_after(grammar, "{\n")


def test_choices_are_taken_literally() -> None:
    texts = ['say "hi"', "back\\slash", "new\nline", "/regex/", "größe", "a", "ab"]
    grammar = GrammarState(VOCABULARY.grammars.compile(choice_grammar(texts, "guided_choice")), VOCAB_SIZE)
    assert all(grammar.accepts(list(text.encode())) for text in texts)
    assert not any(grammar.accepts(list(text.encode())) for text in ["", "say", "b", "aa", "xregexx"])


def test_gbnf_is_understood() -> None:
    grammar = state("lark", 'root ::= "a" digit+\ndigit ::= [0-9]\n')
    assert grammar.accepts(list(b"a12"))
    assert not grammar.accepts(list(b"a"))


@given(st.lists(st.lists(st.sampled_from(b"ab,;x"), max_size=60), min_size=1, max_size=40), st.randoms())
def test_any_order_of_questions_gives_the_same_answers(texts: list[list[int]], order: random.Random) -> None:
    """Forks, rewinds and rejected drafts are only questions: each is compared with Python's own `re`."""
    pattern = re.compile(rb"(a|bb)*(,a{0,3};)*")
    grammar = state("regex", pattern.pattern.decode())
    asked = [text[:length] for text in texts for length in (len(text), len(text) // 2)]
    order.shuffle(asked)
    for tokens in asked:
        assert grammar.accepts(tokens) == bool(pattern.fullmatch(bytes(tokens)))
        allowed = grammar.allowed(tokens)
        if allowed is not None:
            assert allowed.may_end == bool(pattern.fullmatch(bytes(tokens)))


def test_a_mask_is_not_that_of_a_branch_of_the_same_length() -> None:
    """Found by one request in fifteen with four choices: white space and digits of branches that changed places."""
    source = json.dumps({"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]})
    branches = [
        b'{  "size"\t:\n\t',
        b'{"size"\n\t\t:7 ',
        b'{"size" \t:\n  ',
        b'{ "size":\n 12',
        b'{"size":  123',
        b'{"size": 1234',
    ]
    together = state("json_schema", source)
    for first, second in itertools.permutations(branches, 2):
        for text in (first, second):
            assert allowed_after(together, text) == allowed_after(state("json_schema", source), text), (first, second)


def test_a_search_with_many_branches_agrees_with_fresh_states() -> None:
    source = json.dumps({"type": "array", "items": {"type": "integer"}})
    branches = [list(("[" + ", ".join(str(seed + i) for i in range(30))).encode()) for seed in range(40)]
    shared = state("json_schema", source)
    for length in range(0, 60, 7):
        for branch in branches:
            found, fresh = shared.allowed(branch[:length]), state("json_schema", source).allowed(branch[:length])
            assert found is not None
            assert fresh is not None
            assert (found.tokens == fresh.tokens).all()


def test_tokens_of_a_real_vocabulary(real_vocabulary: Vocabulary) -> None:
    """A token is allowed exactly when its bytes can go on; those that never show in text are not."""
    matcher = real_vocabulary.grammars.compile(Grammar("regex", r"(?s:.*)"))
    allowed = GrammarState(matcher, real_vocabulary.size).allowed([])
    assert allowed is not None
    for token_id in range(real_vocabulary.size):
        piece = real_vocabulary.token_bytes(token_id)
        begins_a_text = bool(piece) and not 0x80 <= piece[0] < 0xC0
        try:
            piece.decode()
        except UnicodeDecodeError as error:
            begins_a_text = begins_a_text and error.reason == "unexpected end of data"
        is_end = token_id in real_vocabulary.end_token_ids
        assert bool(allowed.tokens[token_id]) == (begins_a_text or is_end), (token_id, piece)


def test_the_models_own_tokens_spell_json(real_vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    matcher = real_vocabulary.grammars.compile(Grammar("json_schema", json.dumps(schema)))
    grammar = GrammarState(matcher, real_vocabulary.size)
    tokens = real_vocabulary.encode('{"text": "naïve café 🦙 日本語"}')
    for length in range(len(tokens)):
        allowed = grammar.allowed(tokens[:length])
        assert allowed is not None
        assert allowed.tokens[tokens[length]]
        assert not allowed.may_end
    assert grammar.accepts(tokens)
