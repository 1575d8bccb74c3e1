"""Fixtures of the engine tests."""

from __future__ import annotations

from typing import Any

import pytest

from chatserve.decoding import Registry
from chatserve.engine import Engine, EngineLimits
from chatserve.testing import END_TOKEN_ID, VOCAB_SIZE, FakeRunner, RandomLogits, byte_vocabulary
from tests.engine.engines import CheckedEngine, MakeEngine


@pytest.fixture(scope="session")
def registry() -> Registry:
    return Registry.load()


@pytest.fixture
def make_engine(registry: Registry) -> MakeEngine:
    """``make_engine(num_blocks=64, ...)``: an engine whose integrity is checked after every step."""

    def make(runner: FakeRunner | None = None, **limits: Any) -> Engine:
        limits = {"num_blocks": 64, "block_size": 4, **limits}
        fake = runner or FakeRunner(RandomLogits(VOCAB_SIZE, seed=3, end_token_ids=(END_TOKEN_ID,), end_bias=2.0))
        return CheckedEngine(fake, byte_vocabulary(), registry, EngineLimits(**limits))

    return make
