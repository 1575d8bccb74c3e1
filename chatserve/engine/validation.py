"""What a request must satisfy before any work is done for it. Messages name field, value and what is allowed."""

from __future__ import annotations

import math

from chatserve.decoding.sampling import Sampling
from chatserve.engine.generation import GenerationRequest
from chatserve.errors import ContextLengthError, RequestError
from chatserve.models.runner import ModelInfo

MAX_CHOICES = 128
MAX_STOPS = 64
MAX_STOP_LENGTH = 2048
MAX_TOP_LOGPROBS = 100


def check_request(given: GenerationRequest, info: ModelInfo) -> None:
    """Raise RequestError (ContextLengthError for lengths) unless the request can be run by this model."""
    check_sampling(given.sampling, info.vocab_size)
    prompt = given.prompt_token_ids
    if not prompt:
        raise RequestError("prompt: is empty; at least one token is needed", param="prompt", code="invalid_value")
    if not 0 <= min(prompt) <= max(prompt) < info.vocab_size:
        raise RequestError(
            f"prompt: holds token ids outside the vocabulary (0 to {info.vocab_size - 1})",
            param="prompt",
            code="invalid_value",
        )
    if given.timeout is not None:
        _in_range("timeout", given.timeout, 0, math.inf, open_below=True)
    if given.grammar is not None and given.sampling.ignore_eos:
        raise RequestError(
            f"ignore_eos: cannot be combined with {given.grammar.param}, whose answers must end",
            param="ignore_eos",
            code="invalid_value",
        )
    wanted = given.sampling.max_tokens
    if len(prompt) >= info.max_model_len or len(prompt) + (wanted or 0) > info.max_model_len:
        asked = f"{len(prompt)} tokens in the prompt" + (f" and {wanted} for the answer" if wanted else "")
        raise ContextLengthError(
            f"the model's maximum context length is {info.max_model_len} tokens, but {asked} were requested",
            param="prompt",
        )


def check_sampling(sampling: Sampling, vocab_size: int) -> None:
    """Raise RequestError for the first parameter outside its range."""
    s = sampling
    _in_range("temperature", s.temperature, 0, math.inf)
    _in_range("top_p", s.top_p, 0, 1, open_below=True)
    _in_range("top_k", s.top_k, 0, math.inf)
    _in_range("min_p", s.min_p, 0, 1)
    _in_range("presence_penalty", s.presence_penalty, -2, 2)
    _in_range("frequency_penalty", s.frequency_penalty, -2, 2)
    _in_range("repetition_penalty", s.repetition_penalty, 0.01, 100)
    _in_range("n", s.n, 1, MAX_CHOICES)
    _in_range("min_tokens", s.min_tokens, 0, math.inf)
    if s.max_tokens is not None:
        _in_range("max_tokens", s.max_tokens, 1, math.inf)
        _in_range("min_tokens", s.min_tokens, 0, s.max_tokens)
    if s.top_logprobs is not None:
        _in_range("top_logprobs", s.top_logprobs, 0, min(MAX_TOP_LOGPROBS, vocab_size))
    _in_range("number of stop strings", len(s.stop), 0, MAX_STOPS, param="stop")
    for stop in s.stop:
        _in_range("length of a stop string", len(stop), 0, MAX_STOP_LENGTH, param="stop")
    if not all(s.stop):
        raise RequestError("stop: holds an empty string", param="stop", code="invalid_value")
    for token in s.stop_token_ids:
        _in_range("stop_token_ids", token, 0, vocab_size - 1)
    for token, bias in s.logit_bias.items():
        _in_range("logit_bias token id", token, 0, vocab_size - 1, param="logit_bias")
        _in_range(f"logit_bias of token {token}", bias, -100, 100, param="logit_bias")


def _in_range(
    name: str, value: float, low: float, high: float, *, open_below: bool = False, param: str | None = None
) -> None:
    """Raise unless low <= value <= high (low < value when `open_below`) and value is finite."""
    is_low = value <= low if open_below else value < low
    if not is_low and value <= high and value < math.inf:
        return
    bounds = f"{'greater than' if open_below else 'at least'} {low}" + (
        f" and at most {high}" if high < math.inf else ""
    )
    raise RequestError(f"{name}: is {value}, must be {bounds}", param=param or name, code="invalid_value")
