"""Helpers of the decoder tests: any `async def` as a decoder, over the fake model, with integrity checked each step."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeAlias

import numpy as np

from chatserve.decoding import Context, Decoder, Registry, Sampling, Sequence, decoder
from chatserve.engine import Completion, Engine, EngineLimits, GenerationRequest
from chatserve.engine.llm import run_all
from chatserve.testing import END_TOKEN_ID, VOCAB_SIZE, FakeRunner, LogitsFunction, RandomLogits, byte_vocabulary
from decoders.greedy import greedy
from decoders.parallel import parallel
from decoders.sampling import sampling

Body: TypeAlias = Callable[[Context, Sequence, Any], Coroutine[Any, Any, Any]]
VOCABULARY = byte_vocabulary()
PROMPT = (72, 101, 108, 108, 111)


class CheckedEngine(Engine):
    """Checks its integrity after every step."""

    def step(self) -> bool:
        has_run = super().step()
        self.check_integrity()
        return has_run


def model(**options: Any) -> RandomLogits:
    """The tests' model: any tokens, with an end token now and then."""
    return RandomLogits(VOCAB_SIZE, **{"seed": 3, "end_token_ids": (END_TOKEN_ID,), "end_bias": 2.0, **options})


def as_name(function_name: str) -> str:
    """The name under which a function is registered as a decoder."""
    return function_name.replace("_", "-").strip("-")


def make_engine(
    *bodies: Body | Decoder, logits: LogitsFunction | None = None, max_model_len: int = 8192, **limits: Any
) -> CheckedEngine:
    """An engine whose decoders are the built-in ones and these, by the name of their function."""
    registry = Registry()
    for body in (greedy, parallel, sampling, *bodies):
        registry.add(body if isinstance(body, Decoder) else decoder(as_name(body.__name__))(body))
    runner = FakeRunner(logits or model(), max_model_len=max_model_len)
    return CheckedEngine(runner, VOCABULARY, registry, EngineLimits(**{"num_blocks": 256, "block_size": 4, **limits}))


def request(name: str | None = None, prompt: Iterable[int] = PROMPT, **fields: Any) -> GenerationRequest:
    """A request; `fields` are of `Sampling`, or of `GenerationRequest`."""
    others = {key: fields.pop(key) for key in list(fields) if key in GenerationRequest.__struct_fields__}
    asked = Sampling(**{"seed": 1, **fields})
    return GenerationRequest(prompt_token_ids=tuple(prompt), sampling=asked, decoder=name and as_name(name), **others)


def run(engine: Engine, *requests: GenerationRequest) -> list[Completion]:
    """Run requests together to their end; the pool must be empty afterwards."""
    completions = run_all(engine, requests)
    assert_empty(engine)
    return completions


def assert_empty(engine: Engine) -> None:
    """Nothing is held by anybody."""
    engine.check_integrity()
    stats = engine.stats()
    assert [stats[name] for name in ("blocks_used", "sequences", "requests_running", "requests_waiting")] == [0] * 4


def answer(
    body: Body, prompt: Iterable[int] = PROMPT, logits: LogitsFunction | None = None, **fields: Any
) -> list[int]:
    """Tokens of the only choice of a request that this decoder serves alone."""
    [completion] = run(make_engine(body, logits=logits), request(body.__name__, prompt, **fields))
    return completion.outputs[0].token_ids


def row_of(tokens: list[int], **options: Any) -> Any:
    """The model's own logits behind these tokens."""
    return model(**options)(np.array(tokens, np.int32))


async def speak(ctx: Context, seq: Sequence, params: Any) -> None:
    """Plain sampling."""
    while not seq.ended:
        seq.append(await ctx.sample([seq]))
        ctx.publish(seq)
