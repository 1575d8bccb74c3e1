"""``chatserve serve``: the server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from chatserve.cli.loading import load_engine
from chatserve.cli.options import SOURCES, with_config
from chatserve.config import Config
from chatserve.configuration import settings

if TYPE_CHECKING:
    from chatserve.engine import AsyncEngine

EXAMPLES = f"""\b
Examples:
  chatserve serve
  chatserve serve model.gguf --kv-memory 2 --port 8080
  chatserve serve --decoder my_decoder.py --prefix examples=few_shot.txt
  CHATSERVE_HOST=0.0.0.0 chatserve serve

{SOURCES}
"""


@click.command(epilog=EXAMPLES, short_help="Serve a model over the OpenAI API.")
@with_config(settings(), positional="model", with_singular=True)
def serve(config: Config) -> None:
    """Serve MODEL over the OpenAI API: a hub id, a folder, a GGUF file, or nothing for the default model."""
    _set_up_logging(config.log_level, config.log_format)
    from chatserve.server import serve as run_server

    facts: list[str] = []

    def make_engine() -> AsyncEngine:
        engine = load_engine(config)
        facts.append(_describe(engine, config.block_size))
        return engine

    click.echo(f"chatserve  loading {config.model} ...")
    run_server(make_engine, config, on_ready=lambda url: click.echo(f"chatserve  {url}\n{facts[0]}"))


def _set_up_logging(level: str, form: str) -> None:
    from chatserve.server.json_log import JsonFormatter

    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if form == "json":
        logging.getLogger().handlers[0].setFormatter(JsonFormatter())
    logging.getLogger("sse_starlette").setLevel(logging.INFO)  # it would write out all that is answered
    if level != "debug":  # "Started server process" and the like: the banner says more
        logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _describe(engine: AsyncEngine, block_size: int) -> str:
    """The lines of the start banner below the address."""
    num_tokens = engine.num_blocks * block_size
    size = num_tokens * engine.info.kv_bytes_per_token / 2**20
    return (
        f"model      {engine.info.name}: {engine.info.description}, context {engine.info.max_model_len}\n"
        f"KV         {engine.num_blocks} blocks of {block_size} tokens, {size:.0f} MiB\n"
        "Ctrl-C drains and stops."
    )
