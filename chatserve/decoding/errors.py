"""Exceptions that a decoder raises or may see."""

from __future__ import annotations

from chatserve.errors import DecoderError, RequestError

__all__ = ["DecoderError", "Rejected"]


class Rejected(RequestError):
    """Raised by a decoder to refuse the request: status 400, as long as nothing was sent; a stream gets it as a frame.

    Raise it before the first await if that can be: later, work was done for nothing.

    Args:
        param: the offending field, such as ``decoder_params.width``.
        reason: what is wrong and what is allowed.
    """

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(f"{param}: {reason}", param=param, code="invalid_value")
