"""``chatserve decoders``: what can drive the decoding, with which parameters, and help for those who write decoders."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chatserve.cli.options import with_config
from chatserve.config import Config
from chatserve.errors import RequestError
from chatserve.patience import told_when_slow

if TYPE_CHECKING:
    from chatserve.cli.decoder_check import Checkup
    from chatserve.decoding.registry import Decoder, DecoderInfo

_PATIENCE_SECONDS = 2.0  # before a user is told what takes so long

EXAMPLES = """\b
Examples:
  chatserve decoders list
  chatserve decoders list --decoders my_decoder.py
  chatserve decoders show parallel
  chatserve decoders new my-decoder
  chatserve decoders check my-decoder/my_decoder.py
"""


_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "pattern": "matching {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
}


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
@click.option("--ends-by-itself", is_flag=True, help="It is meant to end choices by rules of its own.")
def check(file: Path, params_text: str, n: int, ends_by_itself: bool) -> None:
    """Check the decoders in FILE: import, name, parameters, and the conformance suite on a fake model.

    The exit code is 1 when anything is wrong.
    """
    from chatserve.cli.decoder_check import Checkup

    params = _parse_params(params_text)
    decoders, is_well = _decoders_in(file)
    if decoders:
        _prepare()
    for decoder in decoders:
        is_well &= _report(decoder, Checkup(decoder, params, n, ends_by_itself))
    if not is_well:
        raise SystemExit(1)


@decoders.command("new")
@click.argument("name")
def new(name: str) -> None:
    """Write a working package for a decoder called NAME into a new folder of that name."""
    from chatserve.cli.decoder_package import write_package

    for path in write_package(name, Path()):
        click.echo(path)
    python = shlex.quote(sys.executable)
    click.echo(f"\nTry it:\n  cd {name}\n  {python} -m pip install --editable '.[test]'\n  {python} -m pytest")


def _parse_params(text: str) -> dict[str, Any]:
    try:
        params = json.loads(text)
    except json.JSONDecodeError as error:
        raise click.BadParameter(f"is not JSON: {error}", param_hint="--params") from None
    if not isinstance(params, dict):
        raise click.BadParameter("must be a JSON object", param_hint="--params")
    return params


def _decoders_in(file: Path) -> tuple[list[Decoder], bool]:
    """The decoders of a file that can be used, and whether these are all; says what is wrong with the others.

    Installed ones are not loaded.
    """
    from chatserve.decoding.registry import Registry

    registry = Registry()
    registry.load_file(str(file))
    infos = registry.list()
    for info in infos:
        if info.reason is not None:
            click.echo(f"{file}: {info.name} is broken: {info.reason}", err=True)
    usable = [registry.get(info.name) for info in infos if info.reason is None]
    return usable, len(usable) == len(infos)


def _prepare() -> None:
    """Make ready what the checks need, and say what takes so long when it does."""
    from chatserve.testing import VOCAB_SIZE
    from chatserve.testing.trial import warm_up

    text = "Preparing the sampling kernels; the first time they are compiled, which takes a minute or two ..."
    with told_when_slow(_PATIENCE_SECONDS, lambda: click.echo(text, err=True)):
        warm_up(VOCAB_SIZE)


def _report(decoder: Decoder, checkup: Checkup) -> bool:
    """Check a decoder and print what is found; whether nothing is wrong."""
    click.echo(f"{decoder.name}  (API {decoder.api})")
    for finding in checkup.findings():
        click.echo(f"  {'FAILED' if finding.problem else 'ok    '}  {finding.title}")
        for line in finding.problem.splitlines():
            click.echo(f"            {line}")
    click.echo(f"{decoder.name}: {checkup.verdict()}")
    return not checkup.num_failed


def _load(config: Config) -> list[DecoderInfo]:
    from chatserve.decoding.registry import Registry

    return Registry.load(config.decoders, strict=config.strict_plugins).list()


def _summary(info: DecoderInfo) -> str:
    return info.description.partition("\n")[0]


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    """The properties of a JSON Schema as msgspec writes it: structs and enums are behind references."""
    definitions: dict[str, Any] = schema.get("$defs", {})

    def resolved(part: Any) -> Any:
        if isinstance(part, list):
            return [resolved(item) for item in part]
        if not isinstance(part, dict) or "$ref" not in part:
            return {key: resolved(value) for key, value in part.items()} if isinstance(part, dict) else part
        others = {key: value for key, value in part.items() if key != "$ref"}
        return {**definitions[part["$ref"].rpartition("/")[2]], **others}

    properties: dict[str, Any] = resolved(resolved(schema).get("properties", {}))
    return properties


def _describe(schema: dict[str, Any]) -> str:
    words = [_values(schema)]
    if "default" in schema:
        words.append(f"default {json.dumps(schema['default'], ensure_ascii=False)}")
    return f"{', '.join(words)}.  {schema.get('description', '')}".rstrip()


def _values(schema: dict[str, Any]) -> str:
    """Which values a JSON Schema allows, in words; values themselves as JSON."""
    if "anyOf" in schema:
        return " or ".join(_values(option) for option in schema["anyOf"])
    if "enum" in schema:
        values = ", ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
        return values if len(schema["enum"]) == 1 else f"one of {values}"
    kind = str(schema.get("type", "any value"))
    if kind == "array" and schema.get("items"):
        kind = f"array of {_values(schema['items'])}"
    return ", ".join([kind, *(text.format(schema[key]) for key, text in _BOUNDS.items() if key in schema)])
