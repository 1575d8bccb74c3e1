"""``chatserve decoders``: what can drive the decoding, and with which parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chatserve.cli.options import with_config
from chatserve.config import Config
from chatserve.errors import RequestError

if TYPE_CHECKING:
    from chatserve.decoding.registry import DecoderInfo

EXAMPLES = """\b
Examples:
  chatserve decoders list
  chatserve decoders list --decoders my_decoder.py
  chatserve decoders show parallel
"""


@click.group(epilog=EXAMPLES, short_help="List decoders and show their parameters.")
def decoders() -> None:
    """List decoders and show their parameters; loads no model."""


@decoders.command("list")
@with_config(["decoders", "strict_plugins"])
def list_decoders(config: Config) -> None:
    """List all decoders: of installed packages and of --decoders files; broken ones with the reason."""
    found = _load(config)
    width = max((len(info.name) for info in found), default=0)
    for info in found:
        text = _summary(info) if info.reason is None else f"BROKEN: {info.reason}"
        click.echo(f"{info.name:<{width}}  {text}")


@decoders.command("show")
@click.argument("name")
@with_config(["decoders", "strict_plugins"])
def show_decoder(config: Config, name: str) -> None:
    """Show what the decoder NAME does, where it comes from and which parameters it takes."""
    found = {info.name: info for info in _load(config)}
    if name not in found:
        raise RequestError(f"decoder {name!r} is not known; there are: {', '.join(found)}", param="decoder")
    info = found[name]
    click.echo(f"{info.name}  ({' '.join(part for part in (info.distribution, info.version) if part)}, API {info.api})")
    click.echo(info.description if info.reason is None else f"BROKEN: {info.reason}")
    properties = _properties(info.parameters)
    click.echo("\nParameters:" if properties else "\nNo parameters.")
    for parameter, schema in properties.items():
        click.echo(f"  {parameter}  {_describe(schema)}")


def _load(config: Config) -> list[DecoderInfo]:
    from chatserve.decoding.registry import Registry

    return Registry.load(config.decoders, strict=config.strict_plugins).list()


def _summary(info: DecoderInfo) -> str:
    return info.description.partition("\n")[0]


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    """The properties of a JSON Schema as msgspec writes it: the struct itself is behind a reference."""
    definition = schema.get("$defs", {}).get(schema.get("$ref", "").rpartition("/")[2], schema)
    properties: dict[str, Any] = definition.get("properties", {})
    return properties


def _describe(schema: dict[str, Any]) -> str:
    kind = schema.get("type") or " or ".join(str(option.get("type", "?")) for option in schema.get("anyOf", []))
    words = [f"one of {', '.join(map(str, schema['enum']))}" if "enum" in schema else kind]
    bounds = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    words += [f"{word} {schema[key]}" for key, word in bounds.items() if key in schema]
    if "default" in schema:
        words.append(f"default {schema['default']}")
    return f"{', '.join(words)}.  {schema.get('description', '')}".rstrip()
