"""`FakeRunner`: a model for tests. Its logits are any function of the context, its paging is checked for real."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from chatserve.models.batch import Batch, Float32Array, Int32Array
from chatserve.models.runner import ModelInfo
from chatserve.testing.pages import Pages

_MEMO_BYTES = 64 << 20


class LogitsFunction(Protocol):
    """Logits as a function of the tokens seen so far."""

    @property
    def vocab_size(self) -> int: ...

    def __call__(self, context: Int32Array) -> Float32Array:
        """float32[vocab_size], the logits of the token after `context`, int32[n]. The result must not be changed."""


class RandomLogits:
    """Pseudo-random logits, a pure function of the whole context.

    Args:
        vocab_size: length of a row.
        seed: another seed is another model.
        scale: logits are uniform in [0, scale); the larger, the more peaked.
        end_token_ids: tokens that `end_bias` is added to.
        end_bias: how much likelier than others these are.
    """

    def __init__(
        self,
        vocab_size: int,
        seed: int = 0,
        *,
        scale: float = 8.0,
        end_token_ids: Sequence[int] = (),
        end_bias: float = 0.0,
    ) -> None:
        self.vocab_size = vocab_size
        self._seed = seed.to_bytes(8, "little", signed=True)
        self._scale = scale
        self._bias = np.zeros(vocab_size, np.float32)
        self._bias[list(end_token_ids)] = end_bias
        self._memo: dict[bytes, Float32Array] = {}
        self._bits = np.random.PCG64()
        self._generator = np.random.Generator(self._bits)

    def __call__(self, context: Int32Array) -> Float32Array:
        key = context.tobytes()
        row = self._memo.get(key)
        if row is None:
            if len(self._memo) * self.vocab_size * 4 > _MEMO_BYTES:
                self._memo.clear()
            row = self._memo[key] = self._draw(key)
        return row

    def _draw(self, context: bytes) -> Float32Array:
        digest = hashlib.blake2b(context, digest_size=16, key=self._seed).digest()
        # Setting the state of one generator takes a tenth of the time of making another.
        numbers: Any = {"state": int.from_bytes(digest, "little"), "inc": 1}
        self._bits.state = {"bit_generator": "PCG64", "state": numbers, "has_uint32": 0, "uinteger": 0}
        row = self._generator.random(self.vocab_size, np.float32)
        row *= self._scale
        row += self._bias
        return row


class Script:
    """Writes scripted answers: the row after a prompt favours the script's first token, and so on to its end.

    A context that was never seen is a prompt. One that is a known context plus the token scripted for it continues
    there. So chunked prefill, preemption, recomputation, forks and any number of requests with different or equal
    prompts work; the one thing to avoid is a new prompt that equals another prompt plus the beginning of its answer.

    Args:
        scripts: the answer to any prompt, or one for each prompt; other prompts are answered by the end token.
        vocab_size: length of a row.
        end_token_id: what follows the script, again and again.
    """

    def __init__(
        self, scripts: Sequence[int] | Mapping[tuple[int, ...], Sequence[int]], *, vocab_size: int, end_token_id: int
    ) -> None:
        self.vocab_size = vocab_size
        self._end_token_id = end_token_id
        self._by_prompt = scripts if isinstance(scripts, Mapping) else {}
        self._default = () if isinstance(scripts, Mapping) else scripts
        self._known: dict[int, tuple[Sequence[int], int]] = {}
        self._rows: dict[int, Float32Array] = {}

    def __call__(self, context: Int32Array) -> Float32Array:
        key = hash(context.tobytes())
        if key not in self._known:
            self._known[key] = self._locate(context)
        return self._row(self._token(*self._known[key]))

    def _locate(self, context: Int32Array) -> tuple[Sequence[int], int]:
        """The script of this context and how far it is written."""
        prompt = tuple(context.tolist())
        if prompt in self._by_prompt:
            return self._by_prompt[prompt], 0
        script, index = self._known.get(hash(context[:-1].tobytes()), ((), -1))
        if index >= 0 and prompt[-1] == self._token(script, index):
            return script, index + 1
        return self._default, 0

    def _token(self, script: Sequence[int], index: int) -> int:
        return script[index] if index < len(script) else self._end_token_id

    def _row(self, token_id: int) -> Float32Array:
        """The scripted token has a logit of 30, all others 0."""
        if token_id not in self._rows:
            self._rows[token_id] = np.zeros(self.vocab_size, np.float32)
            self._rows[token_id][token_id] = 30.0
        return self._rows[token_id]


class Restricted:
    """Another function of the context in which some tokens are forbidden, as by a grammar.

    Args:
        logits: the model.
        allowed: ids of the tokens that may follow a context, int32[n]; must not be empty.
        penalty: subtracted from the logits of all other tokens; infinite forbids them for good.
    """

    def __init__(
        self, logits: LogitsFunction, allowed: Callable[[Int32Array], Sequence[int]], penalty: float = np.inf
    ) -> None:
        self.vocab_size = logits.vocab_size
        self._logits = logits
        self._allowed = allowed
        self._penalty = penalty

    def __call__(self, context: Int32Array) -> Float32Array:
        row = self._logits(context)
        restricted = row - np.float32(self._penalty)
        allowed = list(self._allowed(context))
        restricted[allowed] = row[allowed]
        return restricted


class Faulty:
    """Another function of the context that fails where `when` says so: raises `error`, or answers NaN without one."""

    def __init__(
        self, logits: LogitsFunction, when: Callable[[Int32Array], bool], error: Exception | None = None
    ) -> None:
        self.vocab_size = logits.vocab_size
        self._logits = logits
        self._when = when
        self._error = error

    def __call__(self, context: Int32Array) -> Float32Array:
        if not self._when(context):
            return self._logits(context)
        if self._error is not None:
            raise self._error
        return np.full(self.vocab_size, np.nan, np.float32)


class FakeRunner:
    """A `Runner` over `Pages`: every forward reads all contexts back through the block tables and checks them.

    Args:
        logits: the model.
        max_model_len: longest sequence, in tokens.
        name: model id.
        delay: seconds every forward takes at least (it sleeps).
        raise_at: forward number (from 0) -> exception raised before anything else happens in it.
        record: keep all batches in `batches`.

    Attributes:
        num_forwards: forwards begun so far.
        num_tokens: tokens run so far.
        batches: the batches, when recorded.
    """

    def __init__(
        self,
        logits: LogitsFunction,
        *,
        max_model_len: int = 8192,
        name: str = "fake",
        delay: float = 0.0,
        raise_at: Mapping[int, Exception] | None = None,
        record: bool = False,
    ) -> None:
        self._info = _info(name, logits.vocab_size, max_model_len)
        self._logits = logits
        self._pages: Pages | None = None
        self._raise_at = raise_at or {}
        self._record = record
        self.delay = delay
        self.num_forwards = 0
        self.num_tokens = 0
        self.batches: list[Batch] = []
        self.is_closed = False

    @property
    def info(self) -> ModelInfo:
        return self._info

    def allocate(self, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        assert self._pages is None, "allocated twice"
        self._pages = Pages(num_blocks, block_size, num_host_blocks)

    def forward(self, batch: Batch) -> Float32Array:
        assert self._pages is not None, "forward before allocate"
        assert not self.is_closed, "forward after close"
        if not batch.num_tokens:
            self._pages.move_blocks(batch)
            return np.empty((0, self._logits.vocab_size), np.float32)
        number, self.num_forwards = self.num_forwards, self.num_forwards + 1
        self.num_tokens += batch.num_tokens
        if self._record:
            self.batches.append(batch)
        if self.delay:
            time.sleep(self.delay)
        if number in self._raise_at:
            raise self._raise_at[number]
        assert 0 <= batch.token_ids.min() <= batch.token_ids.max() < self._logits.vocab_size, (
            "a token id does not exist"
        )
        contexts = self._pages.run(batch)
        rows = np.empty((len(batch.wanted), self._logits.vocab_size), np.float32)
        chunks = np.searchsorted(batch.query_starts, batch.wanted, side="right") - 1
        for row, chunk, token in zip(rows, chunks.tolist(), batch.wanted.tolist(), strict=True):
            row[:] = self._logits(contexts[chunk, : batch.positions[token] + 1])
        return rows

    def close(self) -> None:
        self.is_closed = True


class ConstantRunner:
    """A `Runner` that costs nothing: the same rows every time, nothing checked. For measuring what surrounds a forward.

    Rows that the caller changes stay changed.

    Args:
        row: float32[vocab_size], the logits of every row.
        max_rows: most rows a step may want.
        max_model_len: longest sequence, in tokens.
    """

    def __init__(self, row: Float32Array, *, max_rows: int = 512, max_model_len: int = 8192) -> None:
        self._info = _info("constant", len(row), max_model_len)
        self._rows = np.tile(row.astype(np.float32), (max_rows, 1))

    @property
    def info(self) -> ModelInfo:
        return self._info

    def allocate(self, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        """There are no pages."""

    def forward(self, batch: Batch) -> Float32Array:
        return self._rows[: len(batch.wanted)]

    def close(self) -> None:
        """There is nothing to release."""


def _info(name: str, vocab_size: int, max_model_len: int) -> ModelInfo:
    return ModelInfo(
        name=name,
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        kv_bytes_per_token=16,  # what `Pages` keeps for a slot
        is_batch_invariant=True,
        description=f"{name}, {vocab_size} tokens, numpy",
    )
