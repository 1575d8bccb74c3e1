"""`load_engine`: an engine as the commands want it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chatserve.config import Config

if TYPE_CHECKING:
    from chatserve.engine import AsyncEngine


def load_engine(config: Config) -> AsyncEngine:
    """Load the model on this thread, so that Ctrl-C ends it at once; raises ModelLoadError or ConfigError."""
    from chatserve.engine import AsyncEngine
    from chatserve.engine.building import build_engine

    loaded, engine = build_engine(config)
    return AsyncEngine(engine, loaded.chat_template, config.max_queue)
