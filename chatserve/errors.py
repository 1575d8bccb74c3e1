"""The tree of exceptions: what the caller did wrong, what capacity refused, what broke.

    ChatserveError
      ConfigError           a flag, variable or file entry that cannot be used
      ModelLoadError        the model cannot be loaded or served
      RequestError          the caller did something wrong; nothing was run
        ContextLengthError  the prompt does not fit the model's context or the KV pool
        NotFoundError       the request names something that is not there
          ModelNotFoundError  no such model is served
      CapacityError         the request is fine, but cannot be taken now
        QueueFullError      the waiting queue is at its bound
        UnavailableError    starting, draining or dead
      GenerationError       the request broke while it ran; it alone is affected
        DecoderError        the decoder (plugin) misused the API or raised
        DeadlineError       the request took longer than its client allowed

Nothing here knows HTTP: `chatserve.server` maps classes to status codes.
"""

from __future__ import annotations


class ChatserveError(Exception):
    """Root of everything chatserve raises for the outside world."""


class ConfigError(ChatserveError):
    """A configuration value that cannot be used; the message names it and what is allowed."""


class ModelLoadError(ChatserveError):
    """The model cannot be loaded; the message names the model and the reason."""


class RequestError(ChatserveError):
    """A request that can never be served as it stands.

    Args:
        message: names the field, the value and what is allowed.
        param: path of the offending field, such as ``messages[0].role``.
        code: machine-readable code, such as ``unsupported_value``.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class ContextLengthError(RequestError):
    """The prompt, or prompt plus requested tokens, exceeds the context or the KV pool."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class NotFoundError(RequestError):
    """The request names something that this server does not have."""


class ModelNotFoundError(NotFoundError):
    """The request names a model that this server does not serve."""

    def __init__(self, message: str, *, param: str | None = "model") -> None:
        super().__init__(message, param=param, code="model_not_found")


class CapacityError(ChatserveError):
    """The request is valid but cannot be taken now; `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


class QueueFullError(CapacityError):
    """The waiting queue has reached its bound."""


class UnavailableError(CapacityError):
    """The server is starting, draining or its engine is dead."""


class GenerationError(ChatserveError):
    """A running request broke; its blocks are released and no other request is touched."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class DeadlineError(GenerationError):
    """A request did not end in the time that its client gave it, waiting included."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="deadline_exceeded")


class DecoderError(GenerationError):
    """A decoder misused the API, raised, or returned without publishing a choice.

    Attributes:
        place: FILE:LINE in the decoder, where it is known; for the log and for authors, not for clients.
    """

    place: str | None = None

    def __init__(self, message: str) -> None:
        super().__init__(message, code="decoder_error")
