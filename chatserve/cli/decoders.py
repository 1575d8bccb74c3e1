"""``chatserve decoders``: what can drive the decoding, with which parameters, and help for those who write decoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chatserve.cli.options import with_config
from chatserve.config import Config
from chatserve.errors import RequestError

if TYPE_CHECKING:
    from chatserve.decoding.registry import Decoder, DecoderInfo

EXAMPLES = """\b
Examples:
  chatserve decoders list
  chatserve decoders list --decoders my_decoder.py
  chatserve decoders show parallel
  chatserve decoders new my-decoder
  chatserve decoders check my-decoder/my_decoder.py
"""


@click.group(epilog=EXAMPLES, short_help="List, show, check and start decoders.")
def decoders() -> None:
    """List decoders and show their parameters; check and start decoders of your own. Loads no model."""


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


@decoders.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--params", "params_text", default="{}", metavar="JSON", help="Parameters to try the decoder with.")
@click.option("--n", default=1, show_default=True, type=click.IntRange(min=1), help="Choices to ask it for.")
def check(file: Path, params_text: str, n: int) -> None:
    """Check the decoders in FILE: import, name, parameters, and the conformance suite on a fake model.

    The exit code is 1 when anything is wrong.
    """
    params = _parse_params(params_text)
    verdicts = [_report(decoder, params, n) for decoder in _decoders_in(file)]
    if not all(verdicts):
        raise SystemExit(1)


@decoders.command("new")
@click.argument("name")
def new(name: str) -> None:
    """Write a working package for a decoder called NAME into a new folder of that name."""
    from chatserve.cli.decoder_package import write_package

    for path in write_package(name, Path()):
        click.echo(path)
    click.echo(f"\nTry it:\n  cd {name}\n  pip install --editable '.[test]'\n  pytest")


def _parse_params(text: str) -> dict[str, Any]:
    try:
        params = json.loads(text)
    except json.JSONDecodeError as error:
        raise click.BadParameter(f"is not JSON: {error}", param_hint="--params") from None
    if not isinstance(params, dict):
        raise click.BadParameter("must be a JSON object", param_hint="--params")
    return params


def _decoders_in(file: Path) -> list[Decoder]:
    """The decoders of a file; raises RequestError for one that cannot be used. Installed ones are not loaded."""
    from chatserve.decoding.registry import Registry

    registry = Registry()
    registry.load_file(str(file))
    for info in registry.list():
        if info.reason is not None:
            raise RequestError(f"{file}: {info.name} is broken: {info.reason}")
    return [registry.get(info.name) for info in registry.list()]


def _report(decoder: Decoder, params: dict[str, Any], n: int) -> bool:
    """Check a decoder and print what is found; whether nothing is wrong."""
    from chatserve.cli.decoder_check import check_decoder

    click.echo(f"{decoder.name}  (API {decoder.api})")
    num_failed = 0
    for finding in check_decoder(decoder, params, n):
        num_failed += bool(finding.problem)
        click.echo(f"  {'FAILED' if finding.problem else 'ok    '}  {finding.title}")
        for line in finding.problem.splitlines():
            click.echo(f"            {line}")
    click.echo(f"{decoder.name}: {f'{num_failed} checks failed' if num_failed else 'all is well'}")
    return not num_failed


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
