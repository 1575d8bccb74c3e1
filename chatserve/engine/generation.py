"""What goes into the engine and what comes out: `GenerationRequest` in, `Delta`s out."""

from __future__ import annotations

from typing import Any

import msgspec

from chatserve.decoding.sampling import Sampling
from chatserve.text import Grammar


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the engine takes it: token ids in, nothing of HTTP.

    Attributes:
        prompt_token_ids: the whole prompt, special tokens included; not empty.
        sampling: sampling parameters and stop rules.
        decoder: name in the registry; None: parallel when n > 1, greedy when temperature is 0, else sampling.
        decoder_params: validated against the decoder's parameter struct at submission.
        request_id: shown in logs; unique.
        priority: used by the priority policy; lower runs first.
        timeout: seconds after which the request ends with an error, waiting included; None: never.
        cache_salt: keeps this request's KV apart from requests with another salt.
        return_trace: keep what the decoder traces.
        grammar: what the text of every choice must look like; None: anything.
        prompt_logprobs: report log-probabilities of the prompt tokens, with this many alternatives; None: do not.
        shown_token_ids: special tokens that show in the text of the answers, by their names.
    """

    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    decoder: str | None = None
    decoder_params: dict[str, Any] = {}
    request_id: str = ""
    priority: int = 0
    timeout: float | None = None
    cache_salt: str | None = None
    return_trace: bool = False
    grammar: Grammar | None = None
    prompt_logprobs: int | None = None
    shown_token_ids: frozenset[int] = frozenset()


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token with its log-probability (stage *processed*); `logprob` is None when the decoder forced the token."""

    token_id: int
    bytes: bytes
    logprob: float | None


class PublishedToken(msgspec.Struct, frozen=True):
    """One token of an answer.

    Attributes:
        token_id: its id.
        bytes: the bytes it adds to the text: empty for special tokens and for what a stop string cuts off.
            Joined over all tokens of a choice they equal its text in UTF-8 (except for invalid UTF-8).
        logprob: log-probability, stage *processed*; None when forced.
        top: alternatives, best first; empty unless the request asked for them.
    """

    token_id: int
    bytes: bytes
    logprob: float | None
    top: tuple[TokenLogprob, ...] = ()


class Delta(msgspec.Struct, frozen=True):
    """News of one choice. `text` may be empty while text is held back (a partial character, a possible stop string).

    `finish_reason` ("stop" or "length") comes exactly once a choice, with its last delta.
    `trace` holds records of `Context.trace` since the last delta, when the request asked for them.
    """

    choice: int
    text: str
    tokens: tuple[PublishedToken, ...]
    finish_reason: str | None = None
    trace: tuple[dict[str, Any], ...] = ()


class Usage(msgspec.Struct, frozen=True):
    """Token counts of a request: what the choices returned, not what a search spent.

    `computed_tokens` is what the search spent: tokens run through the model, prompt included.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    computed_tokens: int
