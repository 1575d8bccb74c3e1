from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from chatserve.errors import ModelLoadError, RequestError
from chatserve.testing import byte_vocabulary
from chatserve.text import Vocabulary

IDS = st.lists(st.integers(0, 49151) | st.integers(0, 400), max_size=20)


def make_tokenizer(vocab: list[str], decoder: Any, specials: tuple[str, ...] = ()) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocab)}, merges=[]))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    return tokenizer


def sentencepiece(*, strip: bool) -> tuple[Vocabulary, Tokenizer]:
    """Ids 0 to 255 are byte tokens, then come a few words."""
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    steps += [decoders.Strip(" ", 1, 0)] if strip else []
    words = ["▁", "▁▁", "▁the", "llama", "é", "▁日本", "<unk>"]
    vocab = [f"<0x{byte:02X}>" for byte in range(256)] + words
    tokenizer = make_tokenizer(vocab, decoders.Sequence(steps), ("<s>", "</s>"))
    return Vocabulary(tokenizer, size=270, end_token_ids=(264,), bos_token_id=263), tokenizer


def test_encoding_equals_transformers(real_vocabulary: Vocabulary, references: Any) -> None:  # case j3
    for entry in references["encoded"]:
        assert real_vocabulary.encode(entry["text"]) == entry["ids"]


def test_digits_and_contractions(real_vocabulary: Vocabulary) -> None:  # case j3, values given there
    assert real_vocabulary.encode("1234567890") == [*range(33, 42), 32]
    assert real_vocabulary.encode("12+34=") == [33, 34, 27, 35, 36, 45]
    assert real_vocabulary.encode("hi", add_special_tokens=True) == [6004]  # case j1: no begin token


# The default model has no tokens for these control characters and for bytes that unassigned planes need.
KNOWN_CHARACTERS = st.characters(max_codepoint=0x3FFFF, codec="utf-8", exclude_characters="\x04\x06\x13\x14\x16\x1d")


@given(text=st.text(KNOWN_CHARACTERS, max_size=60))
def test_decoding_undoes_encoding(real_vocabulary: Vocabulary, bytes_vocabulary: Vocabulary, text: str) -> None:
    for vocabulary in (real_vocabulary, bytes_vocabulary):
        ids = vocabulary.encode(text, parse_special=False)
        assert vocabulary.decode(ids) == text
        assert b"".join(map(vocabulary.token_bytes, ids)) == text.encode()


@given(ids=IDS)
def test_decoding_equals_tokenizers(real_vocabulary: Vocabulary, raw_tokenizer: Tokenizer, ids: list[int]) -> None:
    assert real_vocabulary.decode(ids) == raw_tokenizer.decode(ids, skip_special_tokens=True)


def test_lossless_spaces_and_split_characters(real_vocabulary: Vocabulary) -> None:
    assert real_vocabulary.decode([216, 2899, 260, 2]) == "  leading the"  # case a7
    assert real_vocabulary.decode([26843, 15107, 116, 243, 2]) == "Hi 🦙"  # case a1
    assert real_vocabulary.decode([23274, 115, 40993, 179, 120, 248, 2]) == "日本語"


def test_ids_without_a_token_decode_to_nothing(bytes_vocabulary: Vocabulary) -> None:
    assert bytes_vocabulary.decode([72, 259, 105, 10**6, -1]) == "Hi"
    assert [bytes_vocabulary.token_bytes(i) for i in (256, 257, 259, 260, -1)] == [b""] * 5
    assert [bytes_vocabulary.token_name(i) for i in (104, 256, 259, -1)] == ["h", "<|end|>", "", ""]


def test_special_texts_are_parsed_unless_told_otherwise(real_vocabulary: Vocabulary) -> None:
    assert real_vocabulary.encode("<|im_end|>") == [2]
    plain = real_vocabulary.encode("<|im_end|>", parse_special=False)
    assert 2 not in plain
    assert real_vocabulary.decode(plain) == "<|im_end|>"
    assert real_vocabulary.encode("<|im_end|>") == [2]


def test_the_begin_token_is_added_once() -> None:
    vocabulary, _ = sentencepiece(strip=True)
    assert vocabulary.encode("llama", add_special_tokens=True)[0] == 263
    assert vocabulary.encode("<s>llama", add_special_tokens=True).count(263) == 1
    assert vocabulary.encode("", add_special_tokens=True) == [263]
    assert vocabulary.encode("llama").count(263) == 0


def test_a_lone_surrogate_is_a_request_error(real_vocabulary: Vocabulary) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        real_vocabulary.encode("a\ud800b")


def test_special_tokens_can_be_made_to_show() -> None:
    vocabulary = byte_vocabulary(specials=("<|end|>", "[CALLS]", "[ARGS]"))
    calls, args = (vocabulary.special_token_id(name) for name in ("[CALLS]", "[ARGS]"))
    assert (calls, args) == (257, 258)
    assert vocabulary.special_token_id("A") is None, "an ordinary token"
    assert vocabulary.special_token_id("[OTHER]") is None
    ids = [*b"a", 257, 258, *b"b", 256]
    showing = vocabulary.showing(frozenset({257}))
    assert showing.decode(ids) == "a[CALLS]b"
    assert showing.token_bytes(257) == b"[CALLS]"
    detokenizer = showing.detokenizer()
    assert "".join(map(detokenizer.step, ids)) == "a[CALLS]b"
    assert vocabulary.decode(ids) == "ab", "the vocabulary itself stays as it is"
    assert vocabulary.showing(frozenset({257})) is showing
    assert vocabulary.showing(frozenset({257, 65, 1000, -1})) is showing, "others show already, or are none"
    assert vocabulary.showing(frozenset()) is vocabulary
    smaller = byte_vocabulary(specials=("<|end|>", "[CALLS]", "[ARGS]"), size=258)
    assert smaller.special_token_id("[ARGS]") is None, "the model has no such row"
    assert smaller.showing(frozenset({258})) is smaller


def test_end_tokens_never_show_even_when_not_marked_special() -> None:
    tokenizer = make_tokenizer(["a", "b", "END"], decoders.ByteLevel())
    vocabulary = Vocabulary(tokenizer, size=3, end_token_ids=(2,))
    assert vocabulary.decode([0, 2, 1]) == "ab"


def test_the_given_special_tokens_replace_those_of_the_tokenizer() -> None:
    tokenizer = make_tokenizer(["a", "b"], decoders.ByteLevel(), ("<x>", "<y>"))
    vocabulary = Vocabulary(tokenizer, size=4, end_token_ids=(), special_token_ids=frozenset({0, 3}))
    assert vocabulary.decode([0, 1, 2, 3]) == "b<x>"


def test_added_tokens_outside_the_byte_alphabet() -> None:
    tokenizer = make_tokenizer(["a"], decoders.ByteLevel())
    tokenizer.add_tokens(["é x", "日"])
    vocabulary = Vocabulary(tokenizer, size=3, end_token_ids=())
    assert vocabulary.decode([0, 1, 2]) == tokenizer.decode([0, 1, 2]) == "aé x日"


@pytest.mark.parametrize("strip", [True, False])
@given(words=st.lists(st.integers(256, 264) | st.text(max_size=3), max_size=8))
def test_sentencepiece_equals_tokenizers_on_valid_text(strip: bool, words: list[int | str]) -> None:
    vocabulary, tokenizer = SENTENCEPIECE[strip]
    ids: list[int] = []
    for word in words:
        ids += [word] if isinstance(word, int) else word.encode()
    assert vocabulary.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True)


SENTENCEPIECE = {strip: sentencepiece(strip=strip) for strip in (True, False)}


def test_sentencepiece_replaces_only_what_is_invalid() -> None:
    vocabulary, _ = SENTENCEPIECE[True]
    assert vocabulary.decode([263, 258, *"日".encode(), 0xFF, 259]) == "the日\ufffdllama"
    assert vocabulary.token_bytes(258) == b" the"


@pytest.mark.parametrize("scheme", ["always", "never"])
@given(ids=st.lists(st.integers(0, 4), max_size=6))
def test_metaspace_equals_tokenizers(scheme: Any, ids: list[int]) -> None:
    tokenizer = make_tokenizer(["▁", "▁▁", "▁a", "b", "c"], decoders.Metaspace(prepend_scheme=scheme))
    vocabulary = Vocabulary(tokenizer, size=5, end_token_ids=())
    assert vocabulary.decode(ids) == tokenizer.decode(ids)


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.WordPiece(),
        decoders.BPEDecoder(),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)]),  # strips every token, not the text
        decoders.Sequence([decoders.Replace("_", " "), decoders.Fuse()]),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
    ],
)
def test_other_decoders_are_refused(decoder: Any) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if decoder is not None:
        tokenizer.decoder = decoder
    with pytest.raises(ModelLoadError, match="decoder"):
        Vocabulary(tokenizer, size=1, end_token_ids=())
