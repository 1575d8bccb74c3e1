"""`Sampler`: turns rows of logits into draws, top-k lists, scores and log-probability rows, for all requests at once.

`SamplingPlan` collects on the event-loop thread what is wanted of each row; `run` does the arithmetic in the worker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chatserve.decoding.errors import DecoderError
from chatserve.decoding.samples import Sample
from chatserve.decoding.sampling import Sampling
from chatserve.decoding.wants import Warp
from chatserve.engine import sampling_kernels as kernels

if TYPE_CHECKING:
    from chatserve.text.grammar_state import GrammarState

Row = NDArray[np.float32]


class Processing:
    """What turns a request's raw logits into processed ones: penalties, bias and tokens that are impossible (yet).

    A grammar lets the answer end only where it is complete, and has precedence over `min_tokens` where nothing else
    may follow. Behind tokens that it does not allow itself, such as a rejected draft, it says nothing.
    """

    __slots__ = ("_bias", "_biased_ids", "_end_ids", "_min_tokens", "_penalties", "grammar", "is_identity")

    def __init__(self, sampling: Sampling, end_token_ids: frozenset[int], grammar: GrammarState | None = None) -> None:
        self._penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
        self._biased_ids = np.array(list(sampling.logit_bias), np.int64)
        self._bias = np.array(list(sampling.logit_bias.values()), np.float32)
        self._end_ids = np.array(sorted(end_token_ids), np.int64)
        self._min_tokens = sampling.min_tokens
        self.grammar = grammar
        changes_nothing = self._penalties == (1.0, 0.0, 0.0) and not sampling.logit_bias and not sampling.min_tokens
        self.is_identity = changes_nothing and grammar is None

    def apply(self, row: Row, context: list[int], prompt_len: int) -> None:
        """Process one row float32[V] in place; `context` are the tokens before the one it predicts."""
        if self._penalties != (1.0, 0.0, 0.0):
            kernels.penalise(row, np.array(context, np.int64), prompt_len, *self._penalties)
        if len(self._biased_ids):
            row[self._biased_ids] += self._bias
        allowed = self.grammar.allowed(context[prompt_len:]) if self.grammar else None
        must_end = allowed is not None and allowed.must_end
        if self._min_tokens and len(context) - prompt_len < self._min_tokens and not must_end:
            row[self._end_ids] = -np.inf
        if allowed is not None:
            if allowed.may_end:
                allowed.tokens[self._end_ids] = True
            kernels.forbid(row, allowed.tokens)


@dataclass(slots=True)
class SamplingPlan:
    """What is wanted of the rows of one step; rows are numbered as in `Batch.wanted`.

    Only the rows in `processed` are processed; those wanted raw are not among them.

    Each `add_*` answers where its result will stand in the `SamplingResult`.
    """

    processed: list[tuple[int, Processing, list[int], int]] = field(default_factory=list)
    draw_rows: list[int] = field(default_factory=list)
    draw_warps: list[Warp] = field(default_factory=list)
    draw_counters: list[tuple[int, int, int, int]] = field(default_factory=list)
    top_rows: dict[int, int] = field(default_factory=dict)
    top_k: int = 0
    scores: list[tuple[int, int]] = field(default_factory=list)
    full: list[tuple[int, str, Warp]] = field(default_factory=list)

    def add_draw(self, row: int, warp: Warp, counter: tuple[int, int, int, int]) -> int:
        self.draw_rows.append(row)
        self.draw_warps.append(warp)
        self.draw_counters.append(counter)
        return len(self.draw_rows) - 1

    def add_top(self, row: int, k: int) -> int:
        self.top_k = max(self.top_k, k)
        return self.top_rows.setdefault(row, len(self.top_rows))

    def add_score(self, row: int, token: int) -> int:
        self.scores.append((row, token))
        return len(self.scores) - 1

    def add_full(self, row: int, stage: str, warp: Warp) -> int:
        self.full.append((row, stage, warp))
        return len(self.full) - 1


@dataclass(slots=True)
class SamplingResult:
    """Answers to a `SamplingPlan`, in the order of its entries; plain Python numbers where single tokens are taken.

    `bad_rows` are those whose logits hold NaN or +inf, or forbid every token: their other answers mean nothing.
    """

    draw_tokens: list[int]
    draw_logprobs: list[float]
    top_ids: NDArray[np.int64]
    top_logprobs: Row
    scores: list[float]
    full: list[Row]
    bad_rows: frozenset[int]


def run(plan: SamplingPlan, logits: Row) -> SamplingResult:
    """Answer a plan. `logits` float32[R, V] is processed in place."""
    with kernels.threads_for(logits.size):
        return _run(plan, logits)


def _run(plan: SamplingPlan, logits: Row) -> SamplingResult:
    for row, processing, context, prompt_len in plan.processed:
        processing.apply(logits[row], context, prompt_len)
    maxima = np.empty(len(logits), np.float32)
    log_sums = np.empty(len(logits), np.float64)
    kernels.row_statistics(logits, maxima, log_sums)
    bad_rows = frozenset(np.flatnonzero(np.isnan(log_sums)).tolist())
    norms = (maxima + log_sums).astype(np.float32)
    for row in bad_rows:
        logits[row] = 0.0
        maxima[row] = 0.0
    tokens, logprobs = _draw(plan, logits, maxima, norms)
    top_ids, top_logprobs = _top(plan, logits, norms)
    return SamplingResult(
        tokens,
        logprobs,
        top_ids,
        top_logprobs,
        [float(logits[row, token] - norms[row]) for row, token in plan.scores],
        [_full_row(logits[row] - norms[row], stage, warp) for row, stage, warp in plan.full],
        bad_rows,
    )


def draw_immediately(
    row: Row,
    processing: Processing,
    context: list[int],
    prompt_len: int,
    warp: Warp,
    counter: tuple[int, int, int, int],
    num_top: int,
) -> Sample:
    """Draw from one row of raw logits, which is processed in place; with `num_top` alternatives. Single-threaded.

    Raises DecoderError when processing leaves no token possible.
    """
    if not processing.is_identity:
        processing.apply(row, context, prompt_len)
    maximum = row.max()
    if maximum == -np.inf:
        raise DecoderError("draw: every token is forbidden")
    uniform = float(kernels.uniforms(np.array([counter], np.uint64))[0])
    temperature, top_k, top_p, min_p = warp
    # An integer temperature would be another kernel, compiled while everybody waits.
    token = int(kernels.draw_one(row, maximum, float(temperature), top_k, float(top_p), float(min_p), uniform))
    logprobs = log_softmax(row)
    best = np.argsort(-row, kind="stable")[:num_top].tolist() if num_top else []
    return Sample(token, float(logprobs[token]), tuple((other, float(logprobs[other])) for other in best))


def log_softmax(row: Row) -> Row:
    """Log-probabilities float32[V] of one row, summed in double precision."""
    shifted = row - row.max()
    logprobs: Row = (shifted - np.log(np.exp(shifted, dtype=np.float64).sum())).astype(np.float32)
    return logprobs


def warp_row(logprobs: Row, warp: Warp) -> Row:
    """Log-probabilities of the distribution that a draw with this warp comes from; -inf for what the filters drop."""
    if warp.temperature <= 0:
        warped = np.full_like(logprobs, -np.inf)
        warped[logprobs.argmax()] = 0.0
        return warped
    scaled = np.maximum((logprobs - logprobs.max()).astype(np.float64) / max(warp.temperature, 1e-30), -1e30)
    scaled[logprobs == -np.inf] = -np.inf
    order = np.argsort(-scaled, kind="stable")
    if 0 < warp.top_k < len(order):
        order = order[: warp.top_k]
    weights = np.exp(scaled[order], dtype=np.float64)
    before = np.concatenate([[0.0], np.cumsum(weights)[:-1]])
    keep = (before < warp.top_p * weights.sum()) & (weights >= warp.min_p)
    keep[0] = True
    warped = np.full_like(logprobs, -np.inf)
    warped[order[keep]] = log_softmax(scaled[order[keep]].astype(np.float32))
    return warped


def _draw(plan: SamplingPlan, logits: Row, maxima: Row, norms: Row) -> tuple[list[int], list[float]]:
    if not plan.draw_rows:
        return [], []
    rows = np.array(plan.draw_rows, np.int64)
    tokens = np.empty(len(rows), np.int64)
    warps = np.array(plan.draw_warps, np.float64)
    kernels.draw_tokens(logits, rows, maxima, warps, kernels.uniforms(np.array(plan.draw_counters, np.uint64)), tokens)
    return tokens.tolist(), (logits[rows, tokens] - norms[rows]).tolist()


def _top(plan: SamplingPlan, logits: Row, norms: Row) -> tuple[NDArray[np.int64], Row]:
    rows = np.fromiter(plan.top_rows, np.int64, len(plan.top_rows))
    ids = np.empty((len(rows), plan.top_k), np.int64)
    if len(rows):
        kernels.best_tokens(logits, rows, plan.top_k, ids)
    return ids, logits[rows[:, None], ids] - norms[rows, None]


def _full_row(logprobs: Row, stage: str, warp: Warp) -> Row:
    return warp_row(logprobs, warp) if stage == "warped" else logprobs


def warm_up(vocab_size: int) -> Any:
    """Compile the kernels (or load them from numba's cache) before the first request needs them."""
    plan = SamplingPlan()
    for warp in (Warp(0.0, 0, 1.0, 0.0), Warp(1.0, 5, 0.9, 0.1)):
        plan.add_draw(0, warp, (0, 0, 0, 0))
    plan.add_top(0, 2)
    row = np.zeros(vocab_size, np.float32)
    kernels.draw_one(row, row.max(), 1.0, 5, 0.9, 0.1, 0.5)
    kernels.forbid(np.zeros(vocab_size, np.float32), np.ones(vocab_size, np.bool_))
    kernels.penalise(np.zeros(vocab_size, np.float32), np.zeros(1, np.int64), 0, 1.5, 0.0, 0.0)
    run(plan, np.zeros((1, vocab_size), np.float32))
