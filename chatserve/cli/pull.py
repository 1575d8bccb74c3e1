"""``chatserve pull``: fetch a model before it is needed."""

from __future__ import annotations

from pathlib import Path

import click

from chatserve.cli.options import with_config
from chatserve.config import DEFAULT_MODEL, Config
from chatserve.errors import ModelLoadError

EXAMPLES = """\b
Examples:
  chatserve pull
"""


@click.command(epilog=EXAMPLES, short_help="Fetch a model before it is needed.")
@with_config([], positional="model")
def pull(config: Config) -> None:
    """Fetch the default model into the cache and print where it lies; MODEL may be a local file."""
    click.echo(_fetch(config.model))


def _fetch(model: str) -> Path:
    from chatserve.models.cache_folder import cache_folder
    from chatserve.models.default_model import fetch_default_model

    if model == DEFAULT_MODEL:
        return fetch_default_model(cache_folder())
    path = Path(model).expanduser()
    if path.exists():
        return path
    raise ModelLoadError(f"{model}: no such file, and only the default model ({DEFAULT_MODEL}) can be fetched so far")
