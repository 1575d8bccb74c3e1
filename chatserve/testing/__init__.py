"""The shipped test kit: a fake model whose paging is checked, and a vocabulary of bytes."""

from chatserve.testing.byte_tokenizer import (
    END_TOKEN,
    END_TOKEN_ID,
    START_TOKEN,
    START_TOKEN_ID,
    VOCAB_SIZE,
    byte_chat_template,
    byte_vocabulary,
)
from chatserve.testing.fake_model import (
    ConstantRunner,
    FakeRunner,
    Faulty,
    LogitsFunction,
    RandomLogits,
    Script,
)

__all__ = [
    "END_TOKEN",
    "END_TOKEN_ID",
    "START_TOKEN",
    "START_TOKEN_ID",
    "VOCAB_SIZE",
    "ConstantRunner",
    "FakeRunner",
    "Faulty",
    "LogitsFunction",
    "RandomLogits",
    "Script",
    "byte_chat_template",
    "byte_vocabulary",
]
