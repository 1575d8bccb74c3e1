"""Options made from `Config`: every field is a flag, with the field's description as its help."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from msgspec import inspect

from chatserve.configuration import Setting, load_config, settings

SERVER_SETTINGS = frozenset(
    {
        "api_key_file",
        "api_keys",
        "body_timeout",
        "cors_origins",
        "host",
        "keepalive",
        "keepalive_interval",
        "log_format",
        "max_body_bytes",
        "max_queue",
        "port",
        "root_path",
        "served_model_name",
        "shutdown_grace",
        "stall_timeout",
        "ssl_certfile",
        "ssl_keyfile",
    }
)
SINGULAR = {"api_keys": "--api-key", "cors_origins": "--cors-origin", "decoders": "--decoder", "prefixes": "--prefix"}
"""Second spellings of repeatable flags: one of them names one thing."""
SOURCES = (
    "Every setting above is also a variable (--kv-memory: CHATSERVE_KV_MEMORY) and a key of the TOML file (kv_memory). "
    "A flag wins over a variable, a variable over the file."
)


def engine_settings() -> tuple[str, ...]:
    """The fields that matter without a server."""
    return tuple(name for name in settings() if name not in SERVER_SETTINGS)


def with_config(
    names: Iterable[str], *, positional: str | None = None, with_singular: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command so that it gets a `Config` as its keyword `config`.

    Args:
        names: the fields that this command offers as options; variables and the file may set the others too.
        positional: a field given as an argument instead, such as MODEL.
        with_singular: offer the spellings in `SINGULAR` too; not where ``--decoder`` chooses a decoder.
    """
    offered = [setting for setting in settings().values() if setting.name in set(names) and setting.name != positional]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(*, config_file: Path | None, **arguments: Any) -> None:
            taken = [setting.name for setting in offered] + ([positional] if positional else [])
            flags = {name: arguments.pop(name) for name in taken}
            function(config=load_config(flags, os.environ, config_file), **arguments)

        wrapped: Callable[..., None] = _file_option(command)
        for setting in reversed(offered):
            wrapped = _option(setting, SINGULAR.get(setting.name) if with_singular else None)(wrapped)
        return click.argument(positional, required=False)(wrapped) if positional else wrapped

    return decorate


_file_option = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file with settings; default: $CHATSERVE_CONFIG, else ./chatserve.toml if it exists.",
)


def _option(setting: Setting, second_flag: str | None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    if setting.is_switch:
        flags = f"{setting.flag}/--no-{setting.flag.removeprefix('--')}"
        return click.option(flags, setting.name, default=None, help=_help(setting))
    return click.option(
        *filter(None, (setting.flag, second_flag)),
        setting.name,
        multiple=setting.is_list,
        metavar=_metavar(setting),
        help=_help(setting),
    )


def _metavar(setting: Setting) -> str:
    if setting.choices:
        return f"[{'|'.join(setting.choices)}]"
    if isinstance(setting.kind, inspect.IntType):
        return "INTEGER"
    return "NUMBER" if isinstance(setting.kind, inspect.FloatType) else "TEXT"


def _help(setting: Setting) -> str:
    if setting.default in (None, ()):
        return setting.description
    default = {True: "on", False: "off"}[setting.default] if setting.is_switch else setting.default
    return f"{setting.description}  [default: {default}]"
