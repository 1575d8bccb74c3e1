from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from chatserve.config import Config
from tests.server.harness import Served, make_engine, script, serve_in_thread

ENGINE_SETTINGS = {"delay", "num_blocks", "max_model_len", "max_queue", "extra_decoders", "vocabulary"}


@pytest.fixture
def start_server() -> Iterator[Callable[..., Served]]:
    """Starts servers by an answer or a logits function, engine settings, and fields of Config."""
    with ExitStack() as stack:

        def start(answer: Any = "Hello!", **settings: Any) -> Served:
            logits = script(answer) if isinstance(answer, str | bytes | list) else answer
            given = {name: settings.pop(name) for name in ENGINE_SETTINGS & settings.keys()}
            engine, runner = make_engine(logits, **given)
            config = Config(**{"shutdown_grace": 0.2, **settings})
            return stack.enter_context(serve_in_thread(engine, runner, config))

        yield start


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Answers every prompt with "Hello!"; shared by the tests of a file."""
    engine, runner = make_engine(script("Hello!"))
    with serve_in_thread(engine, runner, Config(shutdown_grace=0.2)) as running:
        yield running
