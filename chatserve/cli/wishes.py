"""`Wishes`: how an answer is to be made, from the options that ``chat`` and ``generate`` share."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import click

OPTIONS = (
    click.option("--decoder", metavar="NAME", help="Decoder; default: greedy at temperature 0, else sampling."),
    click.option(
        "--param", "params", multiple=True, metavar="KEY=VALUE", help="A parameter of the decoder (repeatable)."
    ),
    click.option("--temperature", type=click.FloatRange(min=0), help="0 takes the likeliest token; default: 1."),
    click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Keep the likeliest tokens of this mass."),
    click.option("--top-k", type=click.IntRange(min=0), help="Keep this many of the likeliest tokens; 0 keeps all."),
    click.option("--max-tokens", type=click.IntRange(min=1), help="Longest answer; default: what the context holds."),
    click.option("--stop", multiple=True, metavar="TEXT", help="A text that ends the answer (repeatable)."),
    click.option("--seed", type=int, help="Makes the answer repeatable."),
)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a request asks for besides its prompt.

    Attributes:
        decoder: a decoder's name; None lets the sampling choose.
        decoder_params: its parameters, by name.
        sampling: the fields of `chatserve.decoding.Sampling` that were given.
    """

    decoder: str | None = None
    decoder_params: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)

    def with_choices(self, num_choices: int) -> Wishes:
        return replace(self, sampling={**self.sampling, "n": num_choices})


def with_wishes(function: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command so that it gets a `Wishes` as its keyword `wishes`."""

    @functools.wraps(function)
    def command(*, decoder: str | None, params: tuple[str, ...], **arguments: Any) -> None:
        names = ("temperature", "top_p", "top_k", "max_tokens", "stop", "seed")
        given = {name: arguments.pop(name) for name in names}
        sampling = {name: value for name, value in given.items() if value not in (None, ())}
        function(wishes=Wishes(decoder, dict(map(_parse_param, params)), sampling), **arguments)

    for option in reversed(OPTIONS):
        command = option(command)
    return command


def _parse_param(text: str) -> tuple[str, Any]:
    """``width=4`` as ("width", 4): the value is JSON where it can be read as such, else the text itself."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--param")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value
