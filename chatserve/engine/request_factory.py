"""`RequestFactory`: from what a client asks to a `Request` whose decoder can be started; refuses what can't be run."""

from __future__ import annotations

import logging
import operator
import random
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from chatserve.config import PolicyName, Preemption
from chatserve.decoding.context import Context
from chatserve.decoding.group import Rules, SequenceGroup
from chatserve.decoding.places import place_of
from chatserve.decoding.randomness import derive_seed
from chatserve.decoding.registry import Decoder, Registry
from chatserve.decoding.samples import Sample
from chatserve.decoding.sequence import Sequence
from chatserve.decoding.wants import ScoreWant, Warp
from chatserve.engine import sampler
from chatserve.engine.generation import Delta, GenerationRequest, PublishedToken
from chatserve.engine.named_prefixes import NamedPrefixes
from chatserve.engine.output import published
from chatserve.engine.request import Listener, Request
from chatserve.engine.sampler import Processing
from chatserve.engine.validation import check_request
from chatserve.engine.watchdog import Watchdog, is_users_interrupt
from chatserve.errors import ChatserveError, ContextLengthError, DecoderError, RequestError
from chatserve.kv import BlockPool
from chatserve.models.runner import ModelInfo
from chatserve.text import StopMatcher, Vocabulary

if TYPE_CHECKING:
    from chatserve.text.grammar_state import GrammarState

_log = logging.getLogger("chatserve.engine")
_EXTRA_PROMPTS = 1 << 40  # number of the first `Context.sequence` prompt among the forks a seed is derived for


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Bounds of the engine (see `Config` for the fields)."""

    num_blocks: int
    block_size: int = 16
    max_batch_tokens: int = 512
    max_prefill_tokens: int | None = None
    max_running_sequences: int = 256
    max_sequences: int = 512
    prefix_caching: bool = True
    decoder_timeout: float = 1.0
    num_host_blocks: int = 0
    preemption: Preemption = "auto"
    policy: PolicyName = "fcfs"


class RequestFactory:
    """Makes requests for one model, pool and set of decoders; numbers them by arrival."""

    def __init__(
        self,
        info: ModelInfo,
        vocabulary: Vocabulary,
        registry: Registry,
        pool: BlockPool,
        limits: EngineLimits,
        watchdog: Watchdog,
    ) -> None:
        self._info = info
        self._vocabulary = vocabulary
        self._registry = registry
        self._pool = pool
        self._limits = limits
        self._watchdog = watchdog
        self._num_made = 0
        no_end = Rules(vocabulary, info.vocab_size, frozenset(), (), None, 0, info.max_model_len, info.max_model_len)
        self.prefixes = NamedPrefixes(SequenceGroup(pool, no_end, max_sequences=10_000))

    def make(self, given: GenerationRequest, listener: Listener, decoder: Decoder | None = None) -> Request:
        """A request with its decoder's coroutine not started. Raises RequestError for whatever can be refused.

        `decoder` is one of the engine's own; None: the one that `given` names.
        """
        check_request(given, self._info)
        decoder = decoder or self._registry.get(given.decoder or _default_decoder(given))
        params = self._watchdog.call(decoder.make_params, given.decoder_params)
        num_sequences = self._num_sequences(decoder, params, given.sampling.n)
        num_sequences += given.prompt_logprobs is not None  # the twin in `_score_prompt`
        self._check_fits(len(given.prompt_token_ids), num_sequences)
        if given.sampling.seed is None:
            given = _with_seed(given, random.getrandbits(63))
        group = SequenceGroup(self._pool, self._rules(given), self._limits.max_sequences)
        grammar = self._grammar_state(given)
        processing = Processing(given.sampling, group.rules.end_token_ids, grammar)
        self._num_made += 1
        request = Request(given, group, processing, num_sequences, listener, self._num_made, decoder)
        self._start(request, decoder, params)
        if grammar is not None:
            request.listener = _checked_by(grammar, request, listener)
        return request

    def _grammar_state(self, given: GenerationRequest) -> GrammarState | None:
        if given.grammar is None:
            return None
        from chatserve.text.grammar_state import GrammarState  # llguidance takes a tenth of a second to import

        return GrammarState(self._vocabulary.grammars.compile(given.grammar), self._info.vocab_size)

    def _start(self, request: Request, decoder: Decoder, params: object) -> None:
        context = Context(request.group, request.given.sampling, _Host(request, self.prefixes), request.trace)
        coroutine = decoder(context, request.prompt, params)
        if request.given.prompt_logprobs is not None:
            coroutine = _with_prompt_logprobs(request, context, coroutine)
        request.context, request.coroutine = context, coroutine

    def _rules(self, given: GenerationRequest) -> Rules:
        sampling, info = given.sampling, self._info
        room = info.max_model_len - len(given.prompt_token_ids)
        vocabulary = self._vocabulary.showing(given.shown_token_ids)
        ends = () if sampling.ignore_eos else self._vocabulary.end_token_ids
        return Rules(
            vocabulary=vocabulary,
            vocab_size=info.vocab_size,
            end_token_ids=frozenset(ends) | frozenset(sampling.stop_token_ids),
            stop_strings=sampling.stop,
            stop_matcher=StopMatcher(sampling.stop, vocabulary) if sampling.stop else None,
            min_tokens=sampling.min_tokens,
            max_tokens=room if sampling.max_tokens is None else sampling.max_tokens,
            max_len=info.max_model_len,
        )

    def _check_fits(self, prompt_len: int, num_sequences: int) -> None:
        if num_sequences > self._limits.max_sequences:
            raise RequestError(
                f"the request may hold {num_sequences} sequences; allowed are {self._limits.max_sequences}",
                code="invalid_value",
            )
        needed = self._pool.blocks_for(prompt_len + 1) + num_sequences - 1
        available = self._pool.num_blocks - self.prefixes.num_blocks
        if needed > available:
            raise ContextLengthError(
                f"the request can never fit: it needs {needed} KV blocks of {self._pool.block_size} tokens"
                f" ({prompt_len} prompt tokens, {num_sequences} sequences), the pool has {available}",
                param="prompt",
            )

    def _num_sequences(self, decoder: Decoder, params: object, n: int) -> int:
        try:
            return max(1, operator.index(self._watchdog.call(decoder.num_sequences, params, n)))
        except BaseException as error:  # a plugin's own code may raise anything
            if is_users_interrupt(error):
                raise
            _log.error("the `sequences` function of decoder %s failed", decoder.name, exc_info=error)
            failure = DecoderError(f"decoder {decoder.name!r}: its `sequences` function failed: {error!r}")
            failure.place = place_of(error, decoder.package)
            raise failure from error


class _Host:
    """The engine as one request's context sees it."""

    def __init__(self, request: Request, prefixes: NamedPrefixes) -> None:
        self._request = request
        self._prefixes = prefixes
        self._num_prompts = 0

    def draw(self, sequence: Sequence, logits: NDArray[np.float32], warp: Warp) -> Sample:
        counter, request = sequence._next_counter(), self._request
        return sampler.draw_immediately(
            logits, request.processing, sequence.tokens, sequence.prompt_len, warp, counter, request.num_top
        )

    def new_sequence(self, tokens: list[int], parent: Sequence | None) -> Sequence:
        if parent is not None:
            child = parent.fork()
            child._become_prompt(tokens)
            return child
        return Sequence(self._request.group, tokens, len(tokens), self._next_key())

    def prefix(self, name: str) -> Sequence:
        pinned = self._prefixes.get(name)
        sequence = Sequence(self._request.group, pinned.tokens, len(pinned), self._next_key())
        sequence._share_kv(pinned)
        return sequence

    def _next_key(self) -> int:
        self._num_prompts += 1
        return derive_seed(self._request.prompt._key, _EXTRA_PROMPTS + self._num_prompts)


def _default_decoder(given: GenerationRequest) -> str:
    if given.sampling.n > 1:
        return "parallel"
    return "greedy" if given.sampling.temperature == 0 else "sampling"


def _with_seed(given: GenerationRequest, seed: int) -> GenerationRequest:
    return msgspec.structs.replace(given, sampling=msgspec.structs.replace(given.sampling, seed=seed))


def _checked_by(grammar: GrammarState, request: Request, listener: Listener) -> Listener:
    """A listener that lets no choice end while the grammar is incomplete: decoders may append anything."""

    def listen(news: Delta | ChatserveError | None) -> None:
        if isinstance(news, Delta) and news.finish_reason == "stop":
            tokens = request.published_token_ids()[news.choice]
            has_end = tokens and tokens[-1] in request.group.rules.vocabulary.end_token_ids
            if has_end and not grammar.accepts(tokens[:-1]):
                raise DecoderError("the decoder has appended tokens that the grammar does not allow")
        listener(news)

    return listen


async def _with_prompt_logprobs(request: Request, context: Context, decoder: Coroutine[Any, Any, None]) -> None:
    """Run the decoder, and beside it score the prompt's tokens into `request.prompt_logprobs`."""
    await context.gather(_score_prompt(request), decoder)


async def _score_prompt(request: Request) -> None:
    prompt, vocabulary = request.prompt.tokens, request.group.rules.vocabulary
    twin = Sequence(request.group, prompt, len(prompt), key=0)  # the decoder may free its prompt; nothing is drawn here
    twin._share_kv(request.prompt)
    with twin:
        want = ScoreWant([twin], [[*prompt[1:], prompt[-1]]], "raw")  # the last row predicts the answer: unused
        want.drafts, want.last, want.num_top = None, len(prompt), request.given.prompt_logprobs
        [scored] = await want
    first = PublishedToken(prompt[0], vocabulary.token_bytes(prompt[0]), None)
    rest = [published(sample, vocabulary.token_bytes(sample.token), vocabulary) for sample in scored[:-1]]
    request.prompt_logprobs = [first, *rest]
