from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from chatserve.text import Vocabulary

RAGGED_BYTES = st.lists(
    st.sampled_from(
        [b"a", "é".encode(), "日".encode(), "🦙".encode()[:2], "🦙".encode()[2:], b"\xff", b"\xed\xa0", b"\x80"]
    ),
    max_size=12,
).map(b"".join)


def pieces(vocabulary: Vocabulary, ids: list[int]) -> list[str]:
    detokenizer = vocabulary.detokenizer()
    return [*map(detokenizer.step, ids), detokenizer.flush()]


@given(ids=st.lists(st.integers(0, 49151) | st.integers(0, 400), max_size=30))
def test_pieces_join_to_what_tokenizers_decodes(
    real_vocabulary: Vocabulary, raw_tokenizer: Tokenizer, ids: list[int]
) -> None:
    assert "".join(pieces(real_vocabulary, ids)) == raw_tokenizer.decode(ids, skip_special_tokens=True)


@given(data=RAGGED_BYTES | st.binary(max_size=20))
def test_invalid_bytes(bytes_vocabulary: Vocabulary, data: bytes) -> None:
    found = pieces(bytes_vocabulary, list(data))
    assert "".join(found) == bytes_vocabulary.decode(data) == data.decode("utf-8", "replace")


@given(data=RAGGED_BYTES)
def test_a_piece_never_depends_on_later_tokens(bytes_vocabulary: Vocabulary, data: bytes) -> None:
    whole = data.decode("utf-8", "replace")
    shown = ""
    for piece in pieces(bytes_vocabulary, list(data)):
        shown += piece
        assert whole.startswith(shown)


def test_bytes_of_an_unfinished_character_wait(real_vocabulary: Vocabulary) -> None:  # case a1
    assert pieces(real_vocabulary, [26843, 15107, 116, 243, 2]) == ["Hi", " ", "", "🦙", "", ""]
    japanese = pieces(real_vocabulary, [23274, 115, 40993, 179, 120, 248, 2])
    assert "".join(japanese) == "日本語"
    assert "\ufffd" not in "".join(japanese)


def test_a_cut_character_is_replaced_once_at_the_end(bytes_vocabulary: Vocabulary) -> None:
    assert pieces(bytes_vocabulary, list(b"a\xf0\x9f\xa6")) == ["a", "", "", "", "\ufffd"]


def test_an_answer_of_invalid_bytes_is_shown_and_holds_little(bytes_vocabulary: Vocabulary) -> None:
    detokenizer = bytes_vocabulary.detokenizer()
    shown = ""
    for number in range(8000):
        shown += detokenizer.step(0x80 if number % 3 else 0xF0)
        assert len(detokenizer.partial) <= 3
    assert len(shown) > 5000


def test_line_separators_come_through(real_vocabulary: Vocabulary) -> None:  # case f9
    assert "".join(pieces(real_vocabulary, [81, 321, 118, 82, 2])) == "a\u2028b"
    text = "a\u0085b\vc\r\nd\n"
    assert "".join(pieces(real_vocabulary, real_vocabulary.encode(text))) == text
