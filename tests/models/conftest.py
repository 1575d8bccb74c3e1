"""Fixtures of the models' tests: OpenMP set up as in the product, and the real default model."""

from __future__ import annotations

from pathlib import Path

import pytest

from chatserve.models.threads import prepare_threads

prepare_threads()  # before any test module imports torch


@pytest.fixture(scope="session")
def default_gguf() -> Path:
    """The default model's GGUF file, downloaded when it is not in the cache."""
    from chatserve.models.cache_folder import cache_folder
    from chatserve.models.default_model import fetch_default_model

    return fetch_default_model(cache_folder())
