"""The default model with exact weights, under both runners, each loaded once for all tests here."""

from __future__ import annotations

from typing import Any

import pytest

from chatserve.engine import LLM

EXACT: dict[str, dict[str, Any]] = {"cpu runner": {"weights": "fp32"}, "transformers runner": {"dtype": "float32"}}


@pytest.fixture(scope="session", params=EXACT)
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of `Config` that choose the runner."""
    chosen: dict[str, Any] = EXACT[request.param]
    return chosen


@pytest.fixture(scope="session")
def llm(settings: dict[str, Any]) -> LLM:
    return LLM(kv_memory=0.5, **settings)
