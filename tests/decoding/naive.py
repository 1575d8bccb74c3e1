"""The decoder API without engine, pages or batches: what every answer must be, straight from the model's function.

Written from the documentation of `Sequence` and `Context` alone: token lists are copied, every row is computed from
its whole context, every draw is inverted in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine, Generator, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chatserve.decoding import Sample, Sampling
from chatserve.testing import LogitsFunction

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """SplitMix64's finaliser."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def uniform(key: int, epoch: int, position: int, ordinal: int) -> float:
    """The documented uniform number of a counter."""
    state = 0
    for word in (key & MASK, epoch, position, ordinal):
        state = mix((state * GOLDEN + word + GOLDEN) & MASK)
    return (state >> 11) / 2.0**53


def fork_key(key: int, number: int) -> int:
    """The key of the `number`-th fork."""
    return mix((key + mix(number * GOLDEN & MASK)) & MASK)


def log_softmax(row: NDArray[Any]) -> NDArray[np.float64]:
    row = row.astype(np.float64)
    shifted = row - row.max()
    with np.errstate(divide="ignore"):
        result: NDArray[np.float64] = shifted - math.log(np.exp(shifted).sum())
    return result


def processed(logits: NDArray[Any], sampling: Sampling, tokens: list[int], prompt_len: int) -> NDArray[np.float64]:
    """Logits with penalties and bias."""
    row = logits.astype(np.float64)
    for token in set(tokens):
        row[token] = (
            row[token] / sampling.repetition_penalty if row[token] > 0 else row[token] * sampling.repetition_penalty
        )
    for token in tokens[prompt_len:]:
        row[token] -= sampling.frequency_penalty
    for token in set(tokens[prompt_len:]):
        row[token] -= sampling.presence_penalty
    for token, bias in sampling.logit_bias.items():
        row[token] += bias
    return row


def kept_weights(row: NDArray[np.float64], sampling: Sampling) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids in the order of the cumulative sum, and their weights: temperature, top-k, top-p of the rest, min-p."""
    weights = np.exp((row - row.max()) / sampling.temperature)
    if not sampling.top_k and sampling.top_p >= 1 and not sampling.min_p:
        return np.arange(len(row)), weights
    order = np.argsort(-weights, kind="stable")[: sampling.top_k or None]
    ranked = weights[order]
    before = np.concatenate([[0.0], np.cumsum(ranked)[:-1]])
    keep = (before < sampling.top_p * ranked.sum()) & (ranked >= sampling.min_p)
    keep[0] = True
    return order[keep], ranked[keep]


def draw(row: NDArray[np.float64], sampling: Sampling, number: float) -> int:
    """Invert the cumulative distribution."""
    if sampling.temperature == 0:
        return int(row.argmax())
    ids, weights = kept_weights(row, sampling)
    return int(ids[np.searchsorted(np.cumsum(weights), number * weights.sum(), side="right")])


class NaiveSequence:
    """A token list with the documented counters."""

    def __init__(self, tokens: list[int], prompt_len: int, key: int, max_tokens: int, ends: frozenset[int]) -> None:
        self.tokens, self.prompt_len, self.key = tokens, prompt_len, key
        self.max_tokens, self.ends = max_tokens, ends
        self.samples: list[Sample] = []
        self.num_forks = self.epoch = self.ordinal = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: Any) -> Any:
        return self.tokens[index]

    @property
    def num_generated(self) -> int:
        return len(self.samples)

    @property
    def logprob(self) -> float:
        return sum(sample.logprob or 0.0 for sample in self.samples) + 0.0

    @property
    def ended(self) -> str | None:
        if self.samples and self.tokens[-1] in self.ends:
            return "stop"
        return "length" if len(self.samples) >= self.max_tokens else None

    def fork(self) -> NaiveSequence:
        self.num_forks += 1
        key = fork_key(self.key, self.num_forks)
        child = NaiveSequence(self.tokens[:], self.prompt_len, key, self.max_tokens, self.ends)
        child.samples = self.samples[:]
        return child

    def append(self, items: Any) -> str | None:
        assert not self.ended
        for item in [items] if isinstance(items, Sample | int) else items:
            sample = item if isinstance(item, Sample) else Sample(item)
            self.tokens.append(sample.token)
            self.samples.append(sample)
            self.ordinal = 0
            if self.ended:
                break
        return self.ended

    def truncate(self, length: int) -> None:
        removed = self.samples[length - self.prompt_len :]
        if removed:
            self.epoch += any(sample.logprob is not None for sample in removed)
            self.ordinal = 0
        del self.tokens[length:], self.samples[length - self.prompt_len :]

    def free(self) -> None:
        """There is nothing to give back."""


class Pause:
    """One await: everybody else in a gather gets a turn."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __await__(self) -> Generator[None, None, Any]:
        yield
        return self.answer


class NaiveContext:
    """Answers at once; only `gather` interleaves."""

    def __init__(self, model: LogitsFunction, sampling: Sampling, max_tokens: int) -> None:
        self.model, self.sampling, self.max_tokens = model, sampling, max_tokens
        self.ends = frozenset(() if sampling.ignore_eos else (256,)) | frozenset(sampling.stop_token_ids)
        self.num_prompts = 0

    def prompt(self, tokens: Iterable[int]) -> NaiveSequence:
        tokens = list(tokens)
        return NaiveSequence(tokens, len(tokens), self.sampling.seed or 0, self.max_tokens, self.ends)

    def sequence(self, tokens: list[int], parent: NaiveSequence | None = None) -> NaiveSequence:
        if parent is None:
            self.num_prompts += 1
            key = fork_key(self.sampling.seed or 0, (1 << 40) + self.num_prompts)
            return NaiveSequence(list(tokens), len(tokens), key, self.max_tokens, self.ends)
        child = parent.fork()
        child.tokens += tokens
        child.prompt_len, child.samples = len(child.tokens), []
        return child

    def raw(self, tokens: list[int]) -> NDArray[Any]:
        return self.model(np.array(tokens, np.int32))

    def row(self, tokens: list[int], prompt_len: int) -> NDArray[np.float64]:
        return self.processed(self.raw(tokens), tokens, prompt_len)

    def processed(self, logits: NDArray[Any], tokens: list[int], prompt_len: int) -> NDArray[np.float64]:
        row = processed(logits, self.sampling, tokens, prompt_len)
        if self.sampling.min_tokens > max(0, len(tokens) - prompt_len):
            row[list(self.ends)] = -math.inf
        return row

    def one(self, seq: NaiveSequence, row: NDArray[np.float64], draft: int = 0) -> Sample:
        ordinal, epoch = 0 if draft else seq.ordinal, seq.epoch
        token = draw(row, self.sampling, uniform(seq.key, epoch, len(seq) + draft, ordinal))
        seq.ordinal += draft == 0
        return Sample(token, float(log_softmax(row)[token]))

    def sample(self, seqs: list[NaiveSequence]) -> Pause:
        return Pause([self.one(seq, self.row(seq.tokens, seq.prompt_len)) for seq in seqs])

    def draw(self, seq: NaiveSequence, logits: NDArray[Any]) -> Sample:
        return self.one(seq, self.processed(np.asarray(logits), seq.tokens, seq.prompt_len))

    def verify(self, seqs: list[NaiveSequence], drafts: list[list[int]]) -> Pause:
        return Pause([self._verified(seq, draft) for seq, draft in zip(seqs, drafts, strict=True)])

    def _verified(self, seq: NaiveSequence, draft: list[int]) -> list[Sample]:
        samples: list[Sample] = []
        for length in range(len(draft) + 1):
            samples.append(self.one(seq, self.row(seq.tokens + draft[:length], seq.prompt_len), length))
            if length < len(draft) and samples[-1].token != draft[length]:
                break
        return samples

    def topk(self, seqs: list[NaiveSequence], k: int) -> Pause:
        rows = [log_softmax(self.row(seq.tokens, seq.prompt_len)) for seq in seqs]
        orders = [np.argsort(-row, kind="stable")[:k] for row in rows]
        return Pause(NaiveTopK(orders, [row[order] for row, order in zip(rows, orders, strict=True)]))

    def score(self, seqs: list[NaiveSequence], continuations: list[list[int]]) -> Pause:
        return Pause(
            [
                [
                    Sample(token, float(log_softmax(self.row(seq.tokens + tokens[:i], seq.prompt_len))[token]))
                    for i, token in enumerate(tokens)
                ]
                for seq, tokens in zip(seqs, continuations, strict=True)
            ]
        )

    def logits(self, seqs: list[NaiveSequence], last: int = 1, stage: str = "processed") -> Pause:
        return Pause(
            np.array(
                [
                    [
                        self.stage(seq.tokens[:end], seq.prompt_len, stage)
                        for end in range(len(seq) - last + 1, len(seq) + 1)
                    ]
                    for seq in seqs
                ]
            )
        )

    def stage(self, tokens: list[int], prompt_len: int, stage: str) -> NDArray[np.float64]:
        if stage == "raw":
            return log_softmax(self.raw(tokens))
        row = self.row(tokens, prompt_len)
        if stage == "processed":
            return log_softmax(row)
        warped = np.full(len(row), -np.inf)
        if self.sampling.temperature == 0:
            warped[row.argmax()] = 0.0
        else:
            ids, weights = kept_weights(row, self.sampling)
            with np.errstate(divide="ignore"):
                warped[ids] = np.log(weights / weights.sum())
        return warped

    async def gather(self, *coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
        results: list[Any] = [None] * len(coroutines)
        running = dict(enumerate(coroutines))
        while running:
            for index, coroutine in list(running.items()):
                try:
                    coroutine.send(None)
                except StopIteration as stop:
                    results[index] = stop.value
                    del running[index]
            if running:
                await Pause(None)
        return results


class NaiveTopK:
    """The best k of each row."""

    def __init__(self, tokens: list[NDArray[np.int64]], logprobs: list[NDArray[np.float64]]) -> None:
        self.tokens, self.logprobs = np.array(tokens), np.array(logprobs)

    def sample(self, row: int, column: int) -> Sample:
        return Sample(int(self.tokens[row, column]), float(self.logprobs[row, column]))


def run_naively(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Drive a coroutine over a `NaiveContext` to its end."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration:
        return
