"""The default model's tokenizer and what transformers made of it, recorded by ``tests.text.record_references``."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from chatserve.testing import byte_vocabulary
from chatserve.text import Vocabulary

_DATA = Path(__file__).parent / "data"


def _load_tokenizer() -> Tokenizer:
    return Tokenizer.from_str(lzma.decompress((_DATA / "tokenizer.json.xz").read_bytes()).decode())


@pytest.fixture(scope="session")
def references() -> Any:
    return json.loads((_DATA / "references.json").read_text())


@pytest.fixture(scope="session")
def raw_tokenizer() -> Tokenizer:
    """The tokenizer by itself: the reference for decoding."""
    return _load_tokenizer()


@pytest.fixture(scope="session")
def real_vocabulary() -> Vocabulary:
    return Vocabulary(_load_tokenizer(), size=49152, end_token_ids=(2,))


@pytest.fixture(scope="session")
def bytes_vocabulary() -> Vocabulary:
    """Id b is byte b."""
    return byte_vocabulary()
