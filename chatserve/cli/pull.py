"""``chatserve pull``: fetch a model before it is needed."""

from __future__ import annotations

import click

from chatserve.cli.options import with_config
from chatserve.config import Config

EXAMPLES = """\b
Examples:
  chatserve pull                    the default model
  chatserve pull Qwen/Qwen3-0.6B    a model from the hub
"""


@click.command(epilog=EXAMPLES, short_help="Fetch a model before it is needed.")
@with_config([], positional="model")
def pull(config: Config) -> None:
    """Fetch MODEL (a hub id), or the default model, into the cache and print where it lies."""
    from chatserve.models.cache_folder import cache_folder
    from chatserve.models.default_model import fetch_default_model

    click.echo(fetch_default_model(cache_folder()))
