from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatserve.text import StopHolder, StopMatcher, Vocabulary, find_stop

TEXTS = st.text("ab\n", max_size=12)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3)
CHARACTERS = ["a", "b", "é", "è", "日", "\ufffd"]
RAGGED = st.lists(
    st.sampled_from([*(c.encode() for c in CHARACTERS), b"\xc3", b"\xa9", b"\xe6\x97", b"\x80"]), max_size=10
)
UNICODE_STOPS = st.lists(st.text(CHARACTERS, min_size=1, max_size=3), max_size=3)


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("abcdef", ["cd"], (2, 4)),
        ("abcdef", ["x"], None),
        ("abcdef", [], None),
        ("abcdef", [""], None),
        ("abcdef", ["abcde", "cd"], (2, 4)),  # the smallest end counts, not the smallest start
        ("abcdef", ["d", "bcd", "cd"], (1, 4)),  # same end: the smallest start
        ("aXbX", ["X"], (1, 2)),
    ],
)
def test_the_rule(text: str, stops: list[str], expected: tuple[int, int] | None) -> None:
    assert find_stop(text, stops) == expected


@given(text=TEXTS, stops=STOPS, after=st.integers(0, 12))
def test_the_rule_by_brute_force(text: str, stops: list[str], after: int) -> None:
    spans = [
        (end, start) for end in range(after + 1, len(text) + 1) for start in range(end) if text[start:end] in stops
    ]
    expected = min(spans, default=None)
    assert find_stop(text, stops, after) == (expected and (expected[1], expected[0]))


def split(text: str, cuts: list[int]) -> list[str]:
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


@given(text=TEXTS, stops=STOPS, cuts=st.lists(st.integers(0, 12), max_size=5))
def test_held_text_is_released_exactly_when_no_stop_can_begin_in_it(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    holder, shown, seen = StopHolder(stops), "", ""
    for piece in split(text, cuts):
        shown += holder.push(piece)
        seen += piece
        match = find_stop(seen, stops)
        assert holder.stopped == (match is not None)
        if match:
            assert shown == seen[: match[0]]
        else:
            begun = [
                n
                for n in range(len(seen) + 1)
                if any(len(s) > n and s.startswith(seen[len(seen) - n :]) for s in stops)
            ]
            assert (shown, holder.held) == (seen[: len(seen) - max(begun, default=0)], seen[len(shown) :])
    shown += holder.flush()
    match = find_stop(text, stops)
    assert shown == (text[: match[0]] if match else text)


def test_pieces_of_a_stop_are_never_shown() -> None:  # case a3
    holder = StopHolder(["DEFGHIJ"])
    assert [holder.push(piece) for piece in ["ABC", "DEF", "GH", "I", "J"]] == ["ABC", "", "", "", ""]
    assert holder.stopped
    assert holder.push("more") == holder.flush() == ""


def test_a_stop_that_does_not_come_is_released_in_full() -> None:
    holder = StopHolder(["DEFGHIJ"])
    assert [holder.push(piece) for piece in ["ABC", "DEF", "GX"]] == ["ABC", "", "DEFGX"]
    assert holder.push("DE") + holder.flush() == "DE"


def test_stops_met_while_unarmed_do_not_count() -> None:
    holder = StopHolder(["b", "abc"])
    assert holder.push("ab", armed=False) == ""  # may still become "abc"
    assert holder.push("x") == "abx"
    assert holder.push("b") == ""
    assert holder.stopped


def test_what_an_ignored_stop_ends_with_may_begin_the_next() -> None:
    holder = StopHolder(["aa"])
    assert holder.push("a", armed=False) + holder.push("a", armed=False) == "a"
    assert holder.held == "a"
    assert holder.push("a") == ""
    assert holder.stopped


def settled(data: bytes) -> str:
    """What no continuation can change, tried out with those that complete or break any character."""
    continuations = [b"a", b"\x80\x80\x80", b"\x90\x80\x80", b"\xa0\x80\x80"]
    texts = [(data + more).decode("utf-8", "replace") for more in continuations]
    return next(
        texts[0][:n] for n in range(len(texts[0]), -1, -1) if all(text.startswith(texts[0][:n]) for text in texts)
    )


@given(
    tokens=RAGGED, stops=UNICODE_STOPS, start=st.integers(0, 3), before=st.sampled_from([b"", b"a" * 40, b"\x80" * 40])
)
def test_the_matcher_agrees_with_the_rule_on_decoded_text(
    bytes_vocabulary: Vocabulary, tokens: list[bytes], stops: list[str], start: int, before: bytes
) -> None:
    data = before + b"".join(tokens)
    matcher = StopMatcher(stops, bytes_vocabulary)
    prompt = list("日aé".encode())[:start]
    for end in range(max(1, len(before)), len(data) + 1):
        for num_new in {1, 2, end} - set(range(end + 1, 3)):
            old, new = settled(data[: end - num_new]), settled(data[:end])
            found = matcher.matches([*prompt, *data[:end]], num_new, start=start)
            assert found == (find_stop(new, stops, len(old)) is not None)


@given(ids=st.lists(st.sampled_from([35542, 33203, 23960, 57, 58, 2, 216, 2899, 260, 15107, 116, 243]), max_size=12))
def test_the_matcher_on_the_real_vocabulary(real_vocabulary: Vocabulary, ids: list[int]) -> None:
    stops = ["DEFG", "  l", " 🦙", "the"]
    matcher = StopMatcher(stops, real_vocabulary)
    texts = [settled(b"".join(map(real_vocabulary.token_bytes, ids[:n]))) for n in range(len(ids) + 1)]
    for n in range(1, len(ids) + 1):
        assert matcher.matches(ids[:n]) == (find_stop(texts[n], stops, len(texts[n - 1])) is not None)


@pytest.mark.parametrize("before", [b"\x80", "日".encode(), b"\xf0\x9f\xa6", "🦙".encode()])
@pytest.mark.parametrize("within", [b"\x80", b"\xe6\x97", "日".encode(), b"\xf0\x9f\xa6"])
@pytest.mark.parametrize("last", [b"a", "日".encode(), b"\x80"])
def test_the_matcher_looks_back_far_enough(
    bytes_vocabulary: Vocabulary, before: bytes, within: bytes, last: bytes
) -> None:
    for num_within in range(4):
        data = before * 12 + within * num_within + last
        for stop in {settled(data)[-length:] for length in range(1, 6)} | {"\ufffd" * n for n in range(1, 6)}:
            old, new = settled(data[:-1]), settled(data)
            found = StopMatcher([stop], bytes_vocabulary).matches(list(data))
            assert found == (find_stop(new, [stop], len(old)) is not None)


@pytest.mark.parametrize("stop", ["a\ud800", "\ud800", ""])
def test_stops_that_no_text_contains(bytes_vocabulary: Vocabulary, stop: str) -> None:
    data = list(b"a\xed\xa0\x80b")
    matcher = StopMatcher([stop], bytes_vocabulary)
    assert not any(matcher.matches(data[:n]) for n in range(1, len(data) + 1))
    holder = StopHolder([stop])
    assert holder.push("abc") + holder.flush() == "abc"


def test_long_stops_cost_no_more_than_their_length() -> None:
    holder = StopHolder(["a" * 20_000 + "b"])
    begin = time.perf_counter()
    shown = "".join(holder.push("aaaa") for _ in range(10_000))
    assert time.perf_counter() - begin < 5  # quadratic searching takes minutes
    assert shown + holder.flush() == "a" * 40_000


def test_long_stops_are_prepared_once_for_all_choices() -> None:
    """Each choice of a request has a holder of its own; a hundred of them must not cost a hundred times one."""
    stops = [chr(ord("a") + number % 26) * 2000 + str(number) for number in range(64)]

    def seconds(num_holders: int) -> float:
        started = time.process_time()
        for _ in range(num_holders):
            StopHolder(stops)
        return time.process_time() - started

    first = seconds(1)
    assert seconds(100) < 30 * first
