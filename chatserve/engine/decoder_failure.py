"""`decoder_failure`: what a client is told of an exception that came out of a decoder; its line goes to the log."""

from __future__ import annotations

import logging

from chatserve.decoding.errors import Rejected
from chatserve.decoding.places import place_awaiting, place_of
from chatserve.engine.request import Request
from chatserve.errors import ChatserveError, DecoderError, GenerationError

_log = logging.getLogger("chatserve.engine")
_LONGEST_MESSAGE = 1000  # characters of a plugin's exception that a client is shown


def decoder_failure(error: BaseException, request: Request) -> ChatserveError:
    """What the client of a request is told of an exception that ended it; logged with the line of the decoder.

    Call it before the coroutine is closed: what the engine finds wrong at an await has no traceback in the decoder,
    its line is the one that awaits.

    Returns:
        the error itself if it is one of ours (a misuse of the API) or Rejected, which is the client's fault, else a
        DecoderError that names it; a DecoderError has its `place` then.
    """
    if isinstance(error, Rejected):
        _log.info("request %s: its decoder %s refuses it: %s", request.given.request_id, request.decoder_name, error)
        return error
    failure = error if isinstance(error, GenerationError) else DecoderError(_text(error))
    raised = place_of(error, request.decoder_package)
    place = raised or place_awaiting(request.coroutine, request.decoder_package)
    given, name, at = request.given.request_id, request.decoder_name, f" at {place}" if place else ""
    has_news = raised is not None or failure is not error  # else the traceback shows the engine alone
    shown = error if has_news else None
    _log.error("request %s: its decoder %s failed%s: %s", given, name, at, failure.message, exc_info=shown)
    if isinstance(failure, DecoderError):
        failure.place = place
    return failure


def _text(error: BaseException) -> str:
    try:
        text = str(error)[:_LONGEST_MESSAGE]
    except BaseException:  # a plugin's own exception class may raise even here
        text = "(its text cannot be shown)"
    return f"the decoder raised {type(error).__name__}: {text}"
