from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from chatserve.text import TextStream, Vocabulary, final_text, find_stop

PIECES = st.lists(
    st.sampled_from([b"a", b"b", b"\n", "é".encode(), "🦙".encode(), b"\xf0\x9f", b"\xc3", b"\x80"]), max_size=10
)
STOPS = st.lists(st.text("ab\né🦙\ufffd", min_size=1, max_size=3), max_size=3)


def run(stream: TextStream, ids: list[int], size: int = 1) -> tuple[list[str], list[bytes]]:
    """Push `size` tokens at a time: the texts released, that of the end last, and the bytes of the tokens."""
    texts, shown = [], []
    for start in range(0, len(ids), size):
        texts.append(stream.push(ids[start : start + size]))
        shown += stream.take_bytes()
    texts.append(stream.finish())
    return texts, shown + stream.take_bytes()


@given(data=PIECES.map(b"".join), stops=STOPS, size=st.integers(1, 4))
def test_streamed_equals_unstreamed_equals_decoded(
    bytes_vocabulary: Vocabulary, data: bytes, stops: list[str], size: int
) -> None:
    text = data.decode("utf-8", "replace")
    match = find_stop(text, stops)
    expected = text[: match[0]] if match else text
    ids = list(data)
    stream = TextStream(bytes_vocabulary, stops)
    texts, shown = run(stream, ids, size)
    assert "".join(texts) == stream.text == expected
    assert stream.stopped == (match is not None)
    assert run(TextStream(bytes_vocabulary, stops), ids, len(ids) or 1)[1] == shown
    assert final_text(bytes_vocabulary, ids, stops) == expected
    assert len(shown) == len(ids)
    assert b"".join(shown).decode("utf-8", "replace") == expected
    assert all(one == bytes([byte]) or one == b"" for one, byte in zip(shown, data, strict=True))


@given(
    ids=st.lists(st.integers(0, 49151) | st.integers(0, 400), max_size=12),
    where=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_real_tokens_and_a_stop_out_of_their_text(
    real_vocabulary: Vocabulary, raw_tokenizer: Tokenizer, ids: list[int], where: tuple[float, float]
) -> None:
    text = raw_tokenizer.decode(ids, skip_special_tokens=True)
    start, end = sorted(int(place * len(text)) for place in where)
    stops = [text[start:end]] if end > start else []
    expected = text[: text.index(stops[0])] if stops else text
    texts, shown = run(TextStream(real_vocabulary, stops), ids)
    assert "".join(texts) == expected == final_text(real_vocabulary, ids, stops)
    assert b"".join(shown).decode("utf-8", "replace") == expected


@given(
    text=st.text("ab", max_size=10),
    stops=st.lists(st.text("ab", min_size=1, max_size=3), max_size=2),
    min_tokens=st.integers(0, 8),
)
def test_stops_before_min_tokens_are_ignored(
    bytes_vocabulary: Vocabulary, text: str, stops: list[str], min_tokens: int
) -> None:
    spans = [(end, start) for end in range(1, len(text) + 1) for start in range(end) if text[start:end] in stops]
    _, start = min((span for span in spans if span[0] >= min_tokens), default=(0, len(text)))  # one token a character
    ids = list(text.encode())
    assert "".join(run(TextStream(bytes_vocabulary, stops, min_tokens=min_tokens), ids)[0]) == text[:start]
    assert final_text(bytes_vocabulary, ids, stops, min_tokens=min_tokens) == text[:start]


def test_a_stop_over_several_tokens(real_vocabulary: Vocabulary) -> None:  # case a3
    stream = TextStream(real_vocabulary, ["DEFGHIJ"])
    texts, shown = run(stream, [35542, 33203, 23960, 57, 58, 2])
    assert texts == ["ABC", "", "", "", "", "", ""]
    assert shown == [b"ABC", b"", b"", b"", b"", b""]
    assert stream.stopped


@pytest.mark.parametrize(
    ("stop", "ids", "text", "shown"),
    [
        ("DE", [35542, 33203], "ABC", [b"ABC", b""]),
        ("!", [13663, 17593], "OK?", [b"OK", b"?"]),
        ("CD", [35542, 33203], "AB", [b"AB", b""]),
    ],
)
def test_a_stop_inside_a_token(
    real_vocabulary: Vocabulary, stop: str, ids: list[int], text: str, shown: list[bytes]
) -> None:  # case a5
    texts, found = run(TextStream(real_vocabulary, [stop]), ids)
    assert ("".join(texts), found) == (text, shown)


def test_leading_spaces_stay(real_vocabulary: Vocabulary) -> None:  # case a7
    assert run(TextStream(real_vocabulary), [216, 2899, 260, 2])[0] == [" ", " leading", " the", "", ""]


def test_tokens_of_a_partial_character_go_out_at_once(bytes_vocabulary: Vocabulary) -> None:
    stream = TextStream(bytes_vocabulary, ["!"])
    assert stream.push([0xF0, 0x9F]) == ""
    assert stream.take_bytes() == [b"\xf0", b"\x9f"]


def test_tokens_wait_while_a_stop_may_cut_them(bytes_vocabulary: Vocabulary) -> None:
    stream = TextStream(bytes_vocabulary, ["é!"])
    assert stream.push(b"a\xc3") == "a"
    assert stream.take_bytes() == [b"a"]  # 0xC3 may begin the stop
    assert stream.push(b"\xa9") == ""
    assert stream.take_bytes() == []
    assert stream.push(b"?") == "é?"
    assert stream.take_bytes() == [b"\xc3", b"\xa9", b"?"]


def test_tokens_go_out_as_soon_as_they_are_certain(bytes_vocabulary: Vocabulary) -> None:
    stream = TextStream(bytes_vocabulary, ["aab"])
    assert stream.push(b"aaa") == "a"
    assert stream.take_bytes() == [b"a"]


def test_a_stop_of_replacement_characters_cuts_whole_invalid_parts(bytes_vocabulary: Vocabulary) -> None:
    texts, shown = run(TextStream(bytes_vocabulary, ["\ufffd", "ab"]), [0x61, 0xF0, 0x9F])
    assert "".join(texts) == "a"
    assert shown == [b"a", b"", b""]


def test_fewer_tokens_than_min_tokens_never_stop(bytes_vocabulary: Vocabulary) -> None:
    assert run(TextStream(bytes_vocabulary, ["\ufffd"], min_tokens=2), [0xF0])[0] == ["", "\ufffd"]
    assert final_text(bytes_vocabulary, [0xF0], ["\ufffd"], min_tokens=2) == "\ufffd"


def test_what_comes_after_a_stop_shows_nothing(bytes_vocabulary: Vocabulary) -> None:
    stream = TextStream(bytes_vocabulary, ["X"])
    assert stream.push(b"aXb") == "a"
    assert stream.push(b"cd\xf0") + stream.finish() == ""
    assert stream.take_bytes() == [b"a", b"", b"", b"", b"", b""]
    assert stream.text == "a"


def test_the_leading_space_that_a_tokenizer_strips_is_not_shown() -> None:
    from tokenizers import decoders, models

    tokenizer = Tokenizer(models.BPE(vocab={"▁Hi": 0, "▁you": 1}, merges=[]))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    vocabulary = Vocabulary(tokenizer, size=2, end_token_ids=())
    assert run(TextStream(vocabulary, ["x"]), [0, 1]) == (["Hi", " you", ""], [b"Hi", b" you"])
