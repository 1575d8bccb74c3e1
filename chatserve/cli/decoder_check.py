"""`check_decoder`: a decoder against the rules that can be seen on it, and against the conformance suite."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from chatserve.cli.decoder_package import NAME_PATTERN
from chatserve.decoding.registry import Decoder


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule, and what is wrong; `problem` is empty when nothing is."""

    title: str
    problem: str


def check_decoder(decoder: Decoder, params: dict[str, Any], n: int) -> Iterator[Finding]:
    """Try a decoder on the fake model, rule by rule.

    Args:
        decoder: the decoder.
        params: its parameters, as a request gives them.
        n: choices to ask for.
    """
    from chatserve.testing import DecoderConformance

    is_fine = re.fullmatch(NAME_PATTERN, decoder.name)
    yield Finding("The name is lower case letters, digits and dashes.", "" if is_fine else f"it is {decoder.name!r}")
    yield Finding(
        "It says what it does.",
        "" if decoder.description else "the function has no docstring; lists show its first line",
    )
    suite = type("Suite", (DecoderConformance,), {"decoder": decoder, "params": params, "n": n})
    for method, title in DecoderConformance.titles():
        yield Finding(title, _problem(getattr(suite(), method)))


def _problem(test: Callable[[], None]) -> str:
    """What a test has to complain about, and where the decoder raised, if it did."""
    with _errors_logged() as errors:
        try:
            test()
        except Exception as error:  # the decoder's code may raise anything
            text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            return "\n".join([text, *(f"raised at {_place(logged)}" for logged in errors[-1:])])
    return ""


@contextmanager
def _errors_logged() -> Iterator[list[BaseException]]:
    """Collects the exceptions that are logged meanwhile, instead of showing them."""
    errors: list[BaseException] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1]:
                errors.append(record.exc_info[1])

    logger, collector = logging.getLogger("chatserve"), Collector()
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(collector)
    try:
        yield errors
    finally:
        logger.removeHandler(collector)
        logger.propagate = propagates


def _place(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"
