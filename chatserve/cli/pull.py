"""``chatserve pull``: fetch a model before it is needed."""

from __future__ import annotations

from pathlib import Path

import click

from chatserve.cli.options import with_config
from chatserve.config import DEFAULT_MODEL, Config

EXAMPLES = """\b
Examples:
  chatserve pull                    the default model
  chatserve pull Qwen/Qwen3-0.6B    a model from the hub
"""


@click.command(epilog=EXAMPLES, short_help="Fetch a model before it is needed.")
@with_config([], positional="model")
def pull(config: Config) -> None:
    """Fetch MODEL (a hub id), or the default model, into its cache and print where it lies."""
    click.echo(_fetch(config.model))


def _fetch(model: str) -> Path:
    from chatserve.models.cache_folder import cache_folder
    from chatserve.models.default_model import fetch_default_model
    from chatserve.models.loading import check_model_name

    check_model_name(model)
    if model == DEFAULT_MODEL:
        return fetch_default_model(cache_folder())
    path = Path(model).expanduser()
    if path.exists():
        return path
    from chatserve.models.folder_model import download_hub_model

    return download_hub_model(model)
