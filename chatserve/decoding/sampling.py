"""`Sampling`: what a request asks of every token draw, and the limits of its answer."""

from __future__ import annotations

import msgspec


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters and stop rules of one request; immutable, validated by `validate`.

    Attributes:
        temperature: >= 0; 0 is greedy.
        top_p: in (0, 1]; nucleus mass.
        top_k: keep the k likeliest tokens; 0 keeps all.
        min_p: in [0, 1]; drop tokens less likely than min_p times the likeliest.
        presence_penalty: in [-2, 2]; subtracted from the logit of each token already generated.
        frequency_penalty: in [-2, 2]; subtracted once for each time the token was generated.
        repetition_penalty: in [0.01, 100]; divides positive, multiplies negative logits of seen tokens (CTRL, 4.1).
        logit_bias: token id -> added to its logit, in [-100, 100].
        seed: any integer; None draws one.
        n: number of choices.
        max_tokens: most tokens a choice may generate; None is up to the context length.
        min_tokens: end tokens are impossible and stop strings ignored before this many.
        stop: strings that end a choice; they are not part of the text.
        stop_token_ids: further tokens that end a choice.
        ignore_eos: the model's own end tokens do not end a choice.
        top_logprobs: how many alternatives to report with each token; None reports no log-probabilities at all.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int | None = None
