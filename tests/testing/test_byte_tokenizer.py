from __future__ import annotations

from chatserve.testing import (
    END_TOKEN,
    END_TOKEN_ID,
    START_TOKEN,
    START_TOKEN_ID,
    VOCAB_SIZE,
    byte_chat_template,
    byte_vocabulary,
)


def test_ids_are_bytes() -> None:
    vocabulary = byte_vocabulary()
    text = "Hi é 日 🦙\n\x00"
    assert vocabulary.encode(text) == list(text.encode())
    assert vocabulary.decode(range(VOCAB_SIZE)) == bytes(range(256)).decode("utf-8", "replace")
    assert (vocabulary.size, vocabulary.end_token_ids) == (VOCAB_SIZE, (END_TOKEN_ID,))


def test_special_tokens() -> None:
    vocabulary = byte_vocabulary()
    assert vocabulary.encode(START_TOKEN + END_TOKEN) == [START_TOKEN_ID, END_TOKEN_ID]
    other = byte_vocabulary(specials=("<eos>", "<a>", "<b>"), size=300)
    assert other.encode("<eos><a><b>") == [256, 257, 258]
    assert other.size == 300


def test_the_chat_template() -> None:
    text = byte_chat_template().render([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])
    assert text == "<|start|>system\ns<|end|><|start|>user\nu<|end|><|start|>assistant\n"
    assert byte_vocabulary().encode(text).count(START_TOKEN_ID) == 3
