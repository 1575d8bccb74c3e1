"""The default model, loaded once for all tests here."""

from __future__ import annotations

import pytest

from chatserve.engine import LLM


@pytest.fixture(scope="session")
def llm() -> LLM:
    return LLM(kv_memory=0.5, dtype="float32")
