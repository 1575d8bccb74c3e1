from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.server.harness import CALL, Served, fake_servers, serve_fake, serve_random_model


@pytest.fixture
def start_server() -> Iterator[Callable[..., Served]]:
    """Starts servers by an answer or a logits function, engine settings, and fields of Config."""
    with fake_servers() as start:
        yield start


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Answers every prompt with "Hello!"; shared by the tests of a file."""
    with serve_fake("Hello!") as running:
        yield running


@pytest.fixture(scope="module")
def calling() -> Iterator[Served]:
    """Says something and calls two functions."""
    with serve_fake(f"Let me see. {CALL}\n{CALL}") as running:
        yield running


@pytest.fixture(scope="module")
def random_model() -> Iterator[Served]:
    """Says anything, which is most unlikely to be a call."""
    with serve_random_model() as running:
        yield running
