"""Majority vote: what answers vote for, and patterns that would never come to an end."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
import regex

from chatserve.decoding import Rejected
from chatserve.errors import RequestError
from chatserve.testing import VOCAB_SIZE, RandomLogits, Record, Restricted, TrialEngine
from decoders.majority import extract
from tests.decoders.built_in import BUILT_IN, request

LETTERS = tuple(b"ab0123")


def vote(seed: int = 1, letters: tuple[int, ...] = LETTERS, max_tokens: int = 5, **params: Any) -> Record:
    model = Restricted(RandomLogits(VOCAB_SIZE, seed, scale=1.0), lambda context: letters, penalty=60.0)
    engine = TrialEngine([BUILT_IN["majority"], BUILT_IN["parallel"]], model)
    [record] = engine.run(
        request("majority", seed=seed, max_tokens=max_tokens, ignore_eos=True, params=params, return_trace=True)
    )
    return record


@pytest.mark.parametrize("seed", range(10))
def test_the_commonest_result_wins_and_the_likeliest_answer_gives_it(seed: int) -> None:
    """Against a count by hand over what parallel sampling gives for the same seed."""
    [chosen] = vote(seed, votes=7, pattern=r"\d").answers()
    model = Restricted(RandomLogits(VOCAB_SIZE, seed, scale=1.0), lambda context: LETTERS, penalty=60.0)
    engine = TrialEngine([BUILT_IN["parallel"]], model)
    [record] = engine.run(request("parallel", n=7, seed=seed, max_tokens=5, ignore_eos=True, top_logprobs=0))
    answers = record.answers()
    means = [
        sum(token.logprob or 0.0 for delta in record.of(choice) for token in delta.tokens) / 5 for choice in range(7)
    ]
    results = [next((c for c in reversed(answer.text) if c.isdigit()), None) for answer in answers]
    counts = Counter(result for result in results if result is not None)
    winners = [result for result, count in counts.items() if count == max(counts.values())]
    supporters = [i for i, result in enumerate(results) if result == winners[0]]
    assert chosen == answers[max(supporters, key=lambda i: means[i])]


def test_without_any_result_the_likeliest_answer_wins() -> None:
    assert vote(pattern="z").answers()[0].text


@pytest.mark.parametrize(
    ("pattern", "text", "result"),
    [
        (r"(-?\d+(?:\.\d+)?)", "1 and 2.5, so -3.25", "-3.25"),
        (r"answer: (\w+)", "answer: yes, answer: no", "no"),
        (r"\d+", "none", None),
        (r"(a)|b", "a b", None),
        (r"(?<=is )\w+", "it is so", "so"),
    ],
)
def test_the_last_match_is_the_result(pattern: str, text: str, result: str | None) -> None:
    assert extract(regex.compile(pattern), text, time.process_time() + 10) == result


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "[z-a]", "*", r"\g<9>", "(?P<a>x)(?P<b", r"\L<missing>"])
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(RequestError, match="is not a regular expression") as caught:
        vote(pattern=pattern)
    assert caught.value.param == "decoder_params.pattern"


@pytest.mark.parametrize(
    "pattern",
    [
        "(?:(?:(?:a{1000}){1000}){1000})",
        "((a{9999,}){9999,}){9999,}",
        "(?x)# [ \n(?:(?:a{1000}){1000}){1000}",
        "(?:(?:a{ 1000 }){ 1, 1000 }+){1000}?",
        "(?V1)(?:(?:[a--[b]]{1000}){1000}){1000}",
        "(?:" * 9 + "a" + "{9}){9}" * 9,
    ],
)
def test_a_pattern_that_takes_long_to_compile_is_refused(pattern: str) -> None:
    """Nothing can interrupt a compilation, and these would take all memory."""
    start = time.process_time()
    with pytest.raises(RequestError) as caught:
        vote(pattern=pattern)
    assert caught.value.param == "decoder_params.pattern"
    assert time.process_time() - start < 5


@pytest.mark.parametrize("pattern", [r"\d{1,3}(\.\d{1,3}){3}", "a{300}", "x{2,}y{,3}", "(?:(?:a{30}){30}){30}"])
def test_counted_repeats_are_possible(pattern: str) -> None:
    assert vote(pattern=pattern).answers()[0].text


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(?R)*"])
def test_a_pattern_that_takes_exponential_time_ends_its_own_request_soon(pattern: str) -> None:
    begin = time.process_time()
    record = vote(letters=(*b"aaa", ord("!")), max_tokens=60, votes=3, pattern=pattern)
    assert isinstance(record.error, Rejected) or record.has_ended
    with pytest.raises(Rejected, match="takes too long"):
        extract(regex.compile(pattern), "a" * 40_000 + "!", time.process_time() + 0.1)
    assert time.process_time() - begin < 8, "the watchdog's second would be far from enough for 2 ** 60 attempts"
