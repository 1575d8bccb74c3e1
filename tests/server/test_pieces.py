"""Answers cut into pieces at every kind of border: inside characters and stop strings, around spaces and separators."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from chatserve.testing import END_TOKEN, END_TOKEN_ID, START_TOKEN, START_TOKEN_ID, Script
from chatserve.text import Vocabulary
from chatserve.text.token_bytes import byte_to_character
from tests.server.harness import Served, events, text_of

Start = Callable[..., Served]


def vocabulary_of(pieces: list[bytes]) -> Vocabulary:
    """The bytes, the special tokens of the byte vocabulary, and behind them one token for each piece."""
    characters = byte_to_character()
    vocab = {characters[byte]: byte for byte in range(256)}
    vocab |= {END_TOKEN: END_TOKEN_ID, START_TOKEN: START_TOKEN_ID, "unused": 258, "unused too": 259}
    vocab |= {"".join(characters[byte] for byte in piece): 260 + i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in (END_TOKEN, START_TOKEN)]
    )
    return Vocabulary(tokenizer, size=260 + len(pieces), end_token_ids=(END_TOKEN_ID,))


def start(start_server: Start, pieces: list[bytes]) -> Served:
    """A server whose model writes these pieces, one token each."""
    distinct = list(dict.fromkeys(pieces))
    ids = [260 + distinct.index(piece) for piece in pieces]
    logits = Script(ids, vocab_size=260 + len(distinct), end_token_id=END_TOKEN_ID)
    return start_server(logits, vocabulary=vocabulary_of(distinct))


@pytest.mark.parametrize(
    ("pieces", "stop", "expected"),
    [
        ([b"Hi", b" ", b"\xf0\x9f", b"\xa6\x99"], None, "Hi 🦙"),
        ([b"\xe6\x97\xa5", b"\xe6\x9c", b"\xac", b"\xe8", b"\xaa", b"\x9e"], None, "日本語"),
        ([b"ABC", b"DEF", b"GH", b"I", b"J"], ["DEFGHIJ"], "ABC"),
        ([b"ABC", b"DEF", b"GH", b"I", b"K"], ["DEFGHIJ"], "ABCDEFGHIK"),
        ([b"ABC", b"DEF"], ["DE"], "ABC"),
        ([b"OK", b"?!"], ["!"], "OK?"),
        ([b" ", b" leading", b" the"], None, "  leading the"),
        ([b"a", b"\xe2", b"\x80\xa8", b"b"], None, "a\u2028b"),
        ([b"a\xc2\x85b", b"\x0b", b"\r\n", b"c\n"], None, "a\u0085b\x0b\r\nc\n"),
        ([b"cut \xe6\x97"], None, "cut \ufffd"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("has_logprobs", [False, True])
def test_both_modes_and_endpoints_agree(
    start_server: Start, pieces: list[bytes], stop: object, expected: str, path: str, has_logprobs: bool
) -> None:
    served = start(start_server, pieces)
    ask = served.chat if path.startswith("/v1/chat") else served.complete
    logprobs = (path.startswith("/v1/chat") or 1) if has_logprobs else None
    whole = ask(stop=stop, logprobs=logprobs).json()["choices"][0]
    chunks = events(ask(stop=stop, logprobs=logprobs, stream=True).content)
    assert (whole["text"] if "text" in whole else whole["message"]["content"]) == expected
    assert text_of(chunks) == expected
    assert whole["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "stop"
    shown = itertools.accumulate(text_of([chunk]) for chunk in chunks)
    assert all(expected.startswith(text) for text in shown), "nothing was shown that had to be taken back"


def test_the_bytes_of_chat_logprobs_join_to_the_text(start_server: Start) -> None:
    served = start(start_server, [b"Hi", b" ", b"\xf0\x9f", b"\xa6\x99"])
    items = served.chat(logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert [item["token"] for item in items[:4]] == ["Hi", " ", "bytes:\\xf0\\x9f", "bytes:\\xa6\\x99"]
    assert bytes(itertools.chain.from_iterable(item["bytes"] for item in items)).decode() == "Hi 🦙"
