"""The shipped test kit: conformance tests for decoders, a fake model whose paging is checked, a vocabulary of bytes."""

from chatserve.testing.byte_tokenizer import (
    END_TOKEN,
    END_TOKEN_ID,
    START_TOKEN,
    START_TOKEN_ID,
    VOCAB_SIZE,
    byte_chat_template,
    byte_vocabulary,
)
from chatserve.testing.conformance import DecoderConformance
from chatserve.testing.fake_model import (
    ConstantRunner,
    FakeRunner,
    Faulty,
    LogitsFunction,
    RandomLogits,
    Restricted,
    Script,
)
from chatserve.testing.trial import Answer, Record, TrialEngine

__all__ = [
    "END_TOKEN",
    "END_TOKEN_ID",
    "START_TOKEN",
    "START_TOKEN_ID",
    "VOCAB_SIZE",
    "Answer",
    "ConstantRunner",
    "DecoderConformance",
    "FakeRunner",
    "Faulty",
    "LogitsFunction",
    "RandomLogits",
    "Record",
    "Restricted",
    "Script",
    "TrialEngine",
    "byte_chat_template",
    "byte_vocabulary",
]
