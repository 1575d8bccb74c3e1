"""The short way of plain draws against the general way: in every step the same rows, news and counters."""

from __future__ import annotations

import random
from typing import Any

import pytest

from chatserve.decoding import Registry
from chatserve.engine import Engine, EngineLimits, GenerationRequest, request
from chatserve.engine.step import Step
from chatserve.testing import END_TOKEN_ID, VOCAB_SIZE, FakeRunner, RandomLogits, byte_vocabulary
from tests.engine.engines import request as make_request

_REGISTRY = Registry.load()
_DECODERS = (None, None, None, None, "greedy", "beam", "best-of", "speculative", "diverse-beam")


class RecordingEngine(Engine):
    """Counts the rows of each step that went the short way."""

    def __init__(self, limits: EngineLimits) -> None:
        model = RandomLogits(VOCAB_SIZE, seed=3, end_token_ids=(END_TOKEN_ID,), end_bias=2.0)
        super().__init__(FakeRunner(model), byte_vocabulary(), _REGISTRY, limits)
        self.num_plain_rows = 0
        self.steps: list[Any] = []

    def begin_step(self) -> Step | None:
        step = super().begin_step()
        if step is not None:
            batch = step.batch
            rows = sorted(zip(batch.token_ids.tolist(), batch.positions.tolist(), strict=True))
            num_unwritten = int((batch.slots < 0).sum())
            self.steps.append((rows, num_unwritten, len(batch.wanted), len(batch.copies), _counts(self)))
            self.num_plain_rows += sum(len(one.draw.sequences) for one in step.work.draws if one.draw)
        return step


def _run(seed: int) -> tuple[list[Any], list[list[object]], int]:
    """A drawn workload under drawn limits, requests arriving while others run; some leave before their end."""
    choices = random.Random(seed)
    block_size = choices.choice([1, 2, 4, 16])
    engine = RecordingEngine(
        EngineLimits(
            num_blocks=choices.choice([40, 40, 40, 2000]) // block_size + 12,  # any request fits alone
            block_size=block_size,
            max_batch_tokens=choices.choice([3, 16, 512, 512]),
            max_running_sequences=choices.choice([8, 256]),
            prefix_caching=choices.random() < 0.8,
        )
    )
    heard: list[list[object]] = []
    for index in range(choices.randint(3, 7)):
        news: list[object] = []
        heard.append(news)
        running = engine.submit(_request(choices, index), news.append)
        for _ in range(choices.randint(0, 4)):
            engine.step()
        if choices.random() < 0.1:
            engine.abort(running)
    while engine.step():
        pass
    engine.check_integrity()
    assert engine.stats()["blocks_used"] == 0
    return engine.steps, heard, engine.num_plain_rows


def _request(choices: random.Random, index: int) -> GenerationRequest:
    decoder = choices.choice(_DECODERS)
    start = choices.choice([0, 0, index])
    return make_request(
        range(start, start + choices.choice([1, 5, 16, 33])),
        decoder=decoder,
        seed=index,
        n=choices.choice([1, 1, 3]) if decoder is None else 1,
        temperature=choices.choice([0.0, 0.7, 1.0]),
        top_p=choices.choice([1.0, 0.9]),
        repetition_penalty=choices.choice([1.0, 1.0, 1.2]),
        min_tokens=choices.choice([0, 0, 4]),
        max_tokens=choices.choice([4, 9, 30]),
        ignore_eos=choices.random() < 0.7,
        stop=choices.choice([(), (), ("a", "zz")]),
        top_logprobs=choices.choice([None, None, None, 2]),
    )


def test_the_short_way_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [_run(seed) for seed in range(16)]
    monkeypatch.setattr(request, "as_plain_draw", lambda wants: None)
    for seed, (steps, heard, _) in enumerate(runs):
        expected_steps, expected_heard, num_plain_rows = _run(seed)
        assert heard == expected_heard, seed
        assert steps == expected_steps, seed
        assert num_plain_rows == 0
    assert sum(num_plain_rows for _, _, num_plain_rows in runs) > 300
    assert any(steps[-1][-1]["preemptions"] for steps, _, _ in runs)


def _counts(engine: Engine) -> dict[str, float]:
    """The engine's statistics without times."""
    return {name: value for name, value in engine.stats().items() if not name.startswith("seconds_")}
