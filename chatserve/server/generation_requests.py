"""From a checked body to the engine's `GenerationRequest`: sampling parameters and the choice of decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chatserve.decoding.sampling import Sampling
from chatserve.engine.async_engine import AsyncEngine
from chatserve.engine.generation import GenerationRequest
from chatserve.errors import ModelNotFoundError, RequestError
from chatserve.server.bodies import ChatBody, CompletionBody, GenerationBody
from chatserve.text import Grammar

_COMPLETION_MAX_TOKENS = 16
_MAX_BEAMS = 64
_MAX_STOP_CHARACTERS = 8192  # each is prepared for the search, and each answer looks for all of them


def check_model(engine: AsyncEngine, model: str | None) -> None:
    """Raises ModelNotFoundError unless `model` is absent or the one that is served."""
    if model is not None and model != engine.info.name:
        raise ModelNotFoundError(f"The model {model[:200]!r} is not served here; {engine.info.name!r} is.")


def check_stream_options(body: GenerationBody) -> None:
    """``stream_options`` makes sense for streams only."""
    if body.stream_options is not None and not body.stream:
        raise RequestError(
            "stream_options is only allowed when stream is true.", param="stream_options", code="invalid_value"
        )


def chat_alternatives(body: ChatBody) -> int | None:
    """How many alternatives to report with each token; None when no log-probabilities are wanted."""
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise RequestError("top_logprobs needs logprobs: true.", param="top_logprobs", code="invalid_value")
    return None


def chat_max_tokens(body: ChatBody) -> int | None:
    """``max_completion_tokens``, else the older ``max_tokens``, else up to the context."""
    return body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens


def completion_max_tokens(body: CompletionBody) -> int:
    """``max_tokens``, 16 by default as the legacy API has it."""
    return body.max_tokens if body.max_tokens is not None else _COMPLETION_MAX_TOKENS


def sampling_of(body: GenerationBody, *, max_tokens: int | None, alternatives: int | None) -> Sampling:
    """The engine's sampling parameters; absent fields keep the engine's defaults."""
    given: dict[str, Any] = {name: value for name in _SAME_NAMES if (value := getattr(body, name)) is not None}
    if body.top_k == -1:
        given["top_k"] = 0
    return Sampling(
        **given,
        stop=_stops(body.stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        max_tokens=max_tokens,
        top_logprobs=alternatives,
    )


def _stops(given: str | list[str] | None) -> tuple[str, ...]:
    stops = [given] if isinstance(given, str) else given or []
    for index, text in enumerate(stops):
        if not text:
            param = "stop" if isinstance(given, str) else f"stop[{index}]"
            raise RequestError("A stop string must not be empty.", param=param, code="invalid_value")
    num_characters = sum(map(len, stops))
    if num_characters > _MAX_STOP_CHARACTERS:
        raise RequestError(
            f"stop has {num_characters} characters in all; allowed are {_MAX_STOP_CHARACTERS}.",
            param="stop",
            code="invalid_value",
        )
    return tuple(stops)


_SAME_NAMES = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "n",
    "min_tokens",
    "ignore_eos",
)


def decoder_choice(body: GenerationBody) -> tuple[str | None, dict[str, Any]]:
    """Decoder name and parameters: those given, else what beam search or ``best_of`` imply, else the engine's choice.

    An unknown decoder is refused by the engine, by name.
    """
    params = dict(body.decoder_params or {})
    if body.decoder is not None:
        return body.decoder, params
    num_choices = body.n or 1
    if body.use_beam_search or (body.num_beams or 1) > 1:
        width = body.num_beams or body.best_of or (num_choices if num_choices > 1 else None)
        if width and width > _MAX_BEAMS:
            field = "num_beams" if body.num_beams else "best_of" if body.best_of else "n"
            raise RequestError(
                f"{field} is {width}; beam search takes at most {_MAX_BEAMS}.", param=field, code="invalid_value"
            )
        return "beam", ({"width": width} if width else {}) | params
    if body.best_of is not None and body.best_of != num_choices:
        if body.best_of < num_choices:
            raise RequestError(
                f"best_of is {body.best_of}; it must be at least n.", param="best_of", code="invalid_value"
            )
        return "best-of", {"best_of": body.best_of} | params
    if params:
        raise RequestError("decoder_params needs decoder.", param="decoder_params", code="invalid_value")
    return None, params


def generation_request(
    body: GenerationBody,
    prompt_token_ids: Sequence[int],
    sampling: Sampling,
    *,
    request_id: str,
    grammar: Grammar | None = None,
    prompt_logprobs: int | None = None,
    shown_token_ids: frozenset[int] = frozenset(),
) -> GenerationRequest:
    """Everything the engine needs of one prompt of `body`."""
    decoder, decoder_params = decoder_choice(body)
    return GenerationRequest(
        prompt_token_ids=tuple(prompt_token_ids),
        sampling=sampling,
        decoder=decoder,
        decoder_params=decoder_params,
        request_id=request_id,
        priority=body.priority or 0,
        timeout=body.timeout,
        cache_salt=body.cache_salt,
        return_trace=bool(body.return_trace),
        grammar=grammar,
        prompt_logprobs=prompt_logprobs,
        shown_token_ids=shown_token_ids,
    )
