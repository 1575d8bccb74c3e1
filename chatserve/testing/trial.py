"""`TrialEngine`: an engine over the fake model that watches over every step, and `Record`, all that a client hears."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from chatserve.decoding import Decoder, Registry
from chatserve.engine import Delta, Engine, EngineLimits, GenerationRequest, sampler
from chatserve.engine.request import Request
from chatserve.errors import ChatserveError
from chatserve.testing.byte_tokenizer import byte_vocabulary
from chatserve.testing.fake_model import FakeRunner, LogitsFunction

_vocabulary = cache(byte_vocabulary)
warm_up = cache(sampler.warm_up)
_LIMITS = {
    "num_blocks": 400,
    "block_size": 4,
    "decoder_timeout": 3.0,
}  # a busy machine may stall a decoder for a second


@dataclass
class Answer:
    """One choice as a client has it: its tokens (the end token included), its text, and why it ended."""

    token_ids: list[int]
    text: str
    finish_reason: str | None


@dataclass
class Record:
    """All news of one request; checks that they make sense together.

    Attributes:
        deltas: what came, in order.
        error: what ended the request instead of its answers.
        has_ended: the last news has come.
        published: tokens of each choice after the last step.
        left_open: choices that had not ended when the decoder returned; the engine ended them with "stop".
    """

    num_choices: int
    deltas: list[Delta] = field(default_factory=list)
    error: ChatserveError | None = None
    has_ended: bool = False
    published: list[list[int]] = field(default_factory=list)
    left_open: list[int] = field(default_factory=list)
    _request: Request | None = None
    _problem: str | None = None

    def __call__(self, news: Delta | ChatserveError | None) -> None:
        if self.has_ended:
            self._problem = f"news after the end: {news!r}"
        elif isinstance(news, Delta):
            self._check_delta(news)
            self.deltas.append(news)
        else:
            self.has_ended, self.error = True, news

    @property
    def request(self) -> Request:
        """The request inside the engine; read only."""
        assert self._request is not None
        return self._request

    def of(self, choice: int) -> list[Delta]:
        """The deltas of one choice."""
        return [delta for delta in self.deltas if delta.choice == choice]

    def answers(self) -> list[Answer]:
        """The choices once the request has ended well. Raises AssertionError for whatever a client must not see."""
        assert self._problem is None, self._problem
        if self.error is not None:
            raise AssertionError(f"the request failed: {self.error}") from self.error
        assert self.has_ended, "the request never ended"
        return [self._answer(choice) for choice in range(self.num_choices)]

    def note_step(self) -> None:
        """Compare what is published with what was published a step ago."""
        published = self.request.published_token_ids()
        for choice, (old, new) in enumerate(zip(self.published, published, strict=False)):
            if new[: len(old)] != old:
                self._problem = f"choice {choice} was {old}, then {new}: published tokens were taken back"
        self.published = published

    def _check_delta(self, delta: Delta) -> None:
        if not 0 <= delta.choice < self.num_choices:
            self._problem = f"a delta for choice {delta.choice} of {self.num_choices}"
        elif any(earlier.finish_reason for earlier in self.of(delta.choice)):
            self._problem = f"choice {delta.choice} goes on after its finish reason"

    def _answer(self, choice: int) -> Answer:
        deltas = self.of(choice)
        assert deltas, f"choice {choice} got no delta"
        assert deltas[-1].finish_reason in ("stop", "length"), f"choice {choice} has no finish reason"
        text = "".join(delta.text for delta in deltas)
        return Answer(self.request.published_token_ids()[choice], text, deltas[-1].finish_reason)


class TrialEngine(Engine):
    """An engine that checks its books after every step, and every page that is read.

    Args:
        decoders: the decoders there are.
        model: logits as a function of the context, over the byte vocabulary.
        failures: forward number (from 0) -> exception that it raises.
        limits: fields of `EngineLimits`; by default everything fits, blocks have 4 tokens, decoders 3 seconds.

    Attributes:
        peak_blocks: most blocks that were in use at once.
        before_step: called before each step, to disturb.
    """

    def __init__(
        self,
        decoders: Iterable[Decoder],
        model: LogitsFunction,
        *,
        failures: Mapping[int, Exception] | None = None,
        **limits: Any,
    ) -> None:
        registry = Registry()
        for decoder in decoders:
            registry.add(decoder)
        bounds = EngineLimits(**{**_LIMITS, **limits})
        warm_up(model.vocab_size)  # compiling in the middle of a decoder would count as its own time
        super().__init__(FakeRunner(model, raise_at=failures), _vocabulary(), registry, bounds)
        self.peak_blocks = 0
        self.before_step: Callable[[TrialEngine], None] | None = None
        self._records: list[Record] = []
        self._left_open: dict[Request, list[int]] = {}

    def start(self, given: GenerationRequest) -> Record:
        """Submit a request; raises what `submit` raises."""
        record = Record(given.sampling.n)
        record._request = self.submit(given, record)
        record.left_open = self._left_open.setdefault(record._request, [])
        self._records.append(record)
        return record

    def step(self, interrupt: Callable[[], None] | None = None) -> bool:
        """One whole iteration, with `interrupt` called while the forward would run; False when there was no work."""
        if self.before_step is not None:
            self.before_step(self)
        step = self.begin_step()
        if step is None:
            return False
        self.peak_blocks = max(self.peak_blocks, self.pool.num_used)
        step.run()
        if interrupt is not None:
            interrupt()
        self.end_step(step)
        self.check_integrity()
        for record in self._records:
            record.note_step()
        return True

    def _finish(self, request: Request) -> None:
        assert request.context is not None
        open_choices = [choice.index for choice in request.context._choices if choice.finish_reason is None]
        self._left_open.setdefault(request, []).extend(open_choices)
        super()._finish(request)

    def run(self, *given: GenerationRequest) -> list[Record]:
        """Run requests together until all have ended; everything must be released then."""
        records = [self.start(request) for request in given]
        while self.step():
            pass
        self.check_empty()
        return records

    def check_empty(self) -> None:
        """Raise AssertionError unless no sequence is left, and no block but those of registered prefixes."""
        self.check_integrity()
        stats = self.stats()
        num_blocks, num_sequences = stats["blocks_used"] - stats["blocks_pinned"], stats["sequences"]
        assert not num_blocks, f"{num_blocks:g} blocks are left behind"
        assert not num_sequences, f"{num_sequences:g} sequences are left behind"
