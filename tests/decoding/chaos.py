"""A decoder that plays a drawn script of operations and logs every answer it gets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from chatserve.decoding import Sample

Operation: TypeAlias = tuple[str, int, int, int]
Script: TypeAlias = list[Any]

_CALM = ("fork", "force", "truncate", "retype", "free", "sample", "child", "fresh")
_AWAITS = ("sample", "each", "topk", "verify", "score", "logits", "draw")
_NUMBER = st.integers(0, 5)
_OPERATION = st.tuples(st.sampled_from(_CALM + _AWAITS), _NUMBER, _NUMBER, _NUMBER)
scripts = st.lists(
    st.one_of(
        _OPERATION,
        _OPERATION,
        _OPERATION,
        st.tuples(st.just("gather"), _NUMBER, st.lists(st.lists(_OPERATION, max_size=5), min_size=2, max_size=3)),
    ),
    min_size=1,
    max_size=14,
)


@dataclass
class Chaos:
    """Plays one script over a context and its prompt; works on the engine's and on the naive one.

    Attributes:
        log: every answer, in order.
        peak: most KV blocks that the sequences of one await need, shared ones counted for each.
    """

    script: Script
    block_size: int = 4
    log: list[Any] = field(default_factory=list)
    peak: int = 0
    _needed: int = 0

    async def play(self, ctx: Any, prompt: Any) -> Any:
        """Play to the end; the sequence to publish."""
        live = [prompt]
        await self._play(ctx, live, self.script)
        for seq in live:
            self.log.append((seq[:], seq.ended, seq.num_generated, seq.logprob))
        return live[0]

    async def _play(self, ctx: Any, live: list[Any], script: Script) -> None:
        for operation, *arguments in script:
            await getattr(self, f"_{operation}")(ctx, live, *arguments)

    # operations that need no row

    async def _fork(self, ctx: Any, live: list[Any], i: int, j: int, k: int) -> None:
        live += [live[i % len(live)].fork() for _ in range(1 + k // 4) if len(live) < 9]

    async def _force(self, ctx: Any, live: list[Any], i: int, j: int, k: int) -> None:
        seq = live[i % len(live)]
        if not seq.ended:
            self.log.append(seq.append(_letters(j, 1 + k)))

    async def _truncate(self, ctx: Any, live: list[Any], i: int, j: int, k: int) -> None:
        seq = live[i % len(live)]
        seq.truncate(max(seq.prompt_len, len(seq) - k))

    async def _retype(self, ctx: Any, live: list[Any], i: int, j: int, k: int) -> None:
        """Take tokens back and put most of them there again: their KV may be kept."""
        seq = live[i % len(live)]
        kept = max(seq.prompt_len, len(seq) - 1 - k)
        taken = seq[kept:]
        seq.truncate(kept)
        if taken[: 1 + j]:
            seq.append(taken[: 1 + j])

    async def _free(self, ctx: Any, live: list[Any], i: int, j: int, k: int) -> None:
        if len(live) > 1:
            live.pop(i % len(live)).free()

    async def _child(self, ctx: Any, live: list[Any], i: int, j: int, k: int) -> None:
        if len(live) < 9:
            live.append(ctx.sequence(_letters(j, k), parent=live[i % len(live)]))

    async def _fresh(self, ctx: Any, live: list[Any], i: int, j: int, k: int) -> None:
        if len(live) < 9:
            live.append(ctx.sequence(_letters(i, 1 + j + k)))

    # awaits

    async def _sample(self, ctx: Any, live: list[Any], i: int, j: int, k: int) -> None:
        """Some sequences, perhaps one of them twice."""
        some = [live[(i + step * j) % len(live)] for step in range(1 + k)]
        with self._resident(some):
            samples = await ctx.sample(some)
        self._take(some, samples)

    async def _each(self, ctx: Any, live: list[Any], i: int, j: int, k: int) -> None:
        with self._resident(live):
            samples = await ctx.sample(live)
        self._take(list(live), samples)

    async def _topk(self, ctx: Any, live: list[Any], i: int, j: int, k: int) -> None:
        some = _distinct(live, i, j, k)
        with self._resident(some):
            top = await ctx.topk(some, 3)
        self._take(some, [top.sample(row, k % 3) for row in range(len(some))])

    async def _verify(self, ctx: Any, live: list[Any], i: int, j: int, k: int) -> None:
        some = _distinct(live, i, j, k)
        drafts = [_letters(j + row, k) for row in range(len(some))]
        with self._resident(some, k):
            answers = await ctx.verify(some, drafts)
        for seq, samples in zip(some, answers, strict=True):
            self.log.append(samples)
            if not seq.ended and i < 4:
                seq.append(samples[: 1 + len(samples) * (i > 0)])

    async def _score(self, ctx: Any, live: list[Any], i: int, j: int, k: int) -> None:
        some = [live[(i + step * j) % len(live)] for step in range(1 + k // 2)]
        continuations = [_letters(j + step, 1 + (k + step) % 4) for step in range(len(some))]
        with self._resident(some, 4):
            self.log.append(await ctx.score(some, continuations))

    async def _logits(self, ctx: Any, live: list[Any], i: int, j: int, k: int) -> None:
        some = _distinct(live, i, j, k)
        last = min(1 + 2 * j, *(len(seq) for seq in some), 99)  # rows of the prompt too
        with self._resident(some):
            self.log.append(await ctx.logits(some, last, ("raw", "processed", "warped")[k % 3]))

    async def _draw(self, ctx: Any, live: list[Any], i: int, j: int, k: int) -> None:
        some = _distinct(live, i, j, k)
        with self._resident(some):
            rows = await ctx.logits(some, 1, "raw")
        self._take(some, [ctx.draw(seq, row[0]) for seq, row in zip(some, rows, strict=True)])

    async def _gather(self, ctx: Any, live: list[Any], i: int, branches: list[Script]) -> None:
        """Each branch plays on forks of its own; all name one sequence that they share at their beginning."""
        common = live[i % len(live)]
        lives = [[common.fork(), common.fork()] for _ in branches]
        await ctx.gather(*(self._branch(ctx, common, own, script) for own, script in zip(lives, branches, strict=True)))
        for own in lives:
            live += own[: max(0, 9 - len(live))]

    async def _branch(self, ctx: Any, common: Any, live: list[Any], script: Script) -> None:
        with self._resident([common, *live]):
            samples = await ctx.sample([common, *live])
        self.log.append(samples[:1])
        self._take(live, samples[1:])
        await self._play(ctx, live, script)

    def _take(self, seqs: list[Any], samples: list[Sample]) -> None:
        self.log.append(samples)
        for seq, sample in zip(seqs, samples, strict=True):
            if not seq.ended:
                seq.append(sample)

    @contextmanager
    def _resident(self, seqs: list[Any], num_drafted: int = 0) -> Iterator[None]:
        needed = sum(-(-(len(seq) + num_drafted) // self.block_size) for seq in {id(seq): seq for seq in seqs}.values())
        self._needed += needed
        self.peak = max(self.peak, self._needed)
        yield
        self._needed -= needed


def _letters(start: int, count: int) -> list[int]:
    """Tokens that the model likes: 'A' and 'B' in a pattern."""
    return [65 + (start >> (position % 3)) % 2 for position in range(count)]


def _distinct(live: list[Any], i: int, j: int, k: int) -> list[Any]:
    some = [live[(i + step * j) % len(live)] for step in range(1 + k)]
    return list({id(seq): seq for seq in some}.values())


def difference(first: Any, second: Any, tolerance: float = 0.0) -> str:
    """Where two logs differ first, "" when they agree: tokens exactly, log-probabilities within the tolerance."""
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray) and first.shape == second.shape:
        wrong = np.argwhere(~np.isclose(first, second, rtol=0, atol=tolerance))
        return f"{wrong.tolist()[:3]}: {first[tuple(wrong[0])]} != {second[tuple(wrong[0])]}" if len(wrong) else ""
    if isinstance(first, float) and isinstance(second, float):
        return "" if first == second or abs(first - second) <= tolerance else f"{first} != {second}"
    if isinstance(first, list | tuple) and isinstance(second, list | tuple) and len(first) == len(second):
        found = ((index, difference(*pair, tolerance)) for index, pair in enumerate(zip(first, second, strict=True)))
        return next((f"[{index}] {text}" for index, text in found if text), "")
    return "" if type(first) is type(second) and first == second else f"{first!r} != {second!r}"
