"""Exceptions that a decoder raises or may see."""

from __future__ import annotations

from chatserve.errors import DecoderError, RequestError

__all__ = ["DecoderError", "Rejected"]


class Rejected(RequestError):
    """Raised by a decoder before its first await to refuse the request: a 400 before the first byte.

    Args:
        param: the offending field, such as ``decoder_params.width``.
        reason: what is wrong and what is allowed.
    """

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(f"{param}: {reason}", param=param, code="invalid_value")
