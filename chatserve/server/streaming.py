"""The life of a streaming answer: frames out, errors as frames, cancellation whatever happens."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from sse_starlette.event import ServerSentEvent

from chatserve.config import Config
from chatserve.errors import ChatserveError
from chatserve.server import sse
from chatserve.server.answers import Answers
from chatserve.server.bodies import GenerationBody
from chatserve.server.errors import failure_of
from chatserve.server.frames import Frames, UsageMode

_log = logging.getLogger("chatserve.server")


def usage_mode(body: GenerationBody) -> UsageMode:
    """What ``stream_options`` asks for; continuous statistics include the final chunk."""
    options = body.stream_options
    if options is None:
        return "none"
    if options.continuous_usage_stats:
        return "continuous"
    return "final" if options.include_usage else "none"


def stream_response(answers: Answers, frames: Frames, mode: UsageMode, config: Config) -> sse.EventStream:
    """The HTTP response for accepted generations; they are cancelled when it ends, however it ends."""
    return sse.EventStream(
        _events(answers, frames, mode),
        on_close=answers.cancel,
        keepalive=_keepalive(frames, config),
        interval=config.keepalive_interval,
    )


def _keepalive(frames: Frames, config: Config) -> ServerSentEvent | None:
    match config.keepalive:
        case "comment":
            return sse.comment("keep-alive")
        case "chunk":
            return sse.data(frames.empty().decode("utf-8"))
        case "off":
            return None


async def _events(answers: Answers, frames: Frames, mode: UsageMode) -> AsyncIterator[bytes]:
    is_continuous = mode == "continuous"
    try:
        if opening := frames.opening(answers.num_choices, answers.usage if is_continuous else None):
            yield opening
        async for delta in answers:
            if events := frames.delta(delta, answers.usage if is_continuous else None):
                yield events
        if mode != "none":
            yield frames.usage(answers.usage)
    except Exception as error:
        if not isinstance(error, ChatserveError):
            _log.exception("a stream broke")
        yield sse.frame(failure_of(error).body())
    yield sse.DONE
