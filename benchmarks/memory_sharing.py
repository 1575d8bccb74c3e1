"""Blocks saved by sharing, as in the paper's Figure 15: parallel sampling and beam search, widths 2, 4 and 6.

    python benchmarks/memory_sharing.py

At every step the blocks in use are set against those that the same sequences would use without sharing; the saving is
taken over the whole run. Prompts have the paper's mean lengths (ShareGPT 161, Alpaca 19 tokens; answers of 338 and 58).
The model is a random one: how long beams stay related depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from chatserve.decoding import Registry, Sampling
from chatserve.engine import Engine, EngineLimits, GenerationRequest
from chatserve.testing import VOCAB_SIZE, FakeRunner, RandomLogits, byte_vocabulary

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Workload:
    name: str
    prompt_len: int
    answer_len: int
    paper: dict[str, tuple[float, float]]  # decoder: saving in per cent at width 2 and 6


WORKLOADS = [
    Workload("ShareGPT", 161, 338, {"parallel": (16.2, 30.5), "beam": (44.3, 66.3)}),
    Workload("Alpaca", 19, 58, {"parallel": (6.1, 9.8), "beam": (37.6, 55.2)}),
]


def main() -> None:
    print(f"{'workload':<9} {'decoder':<9} {'width':>5}  {'saved %':>7}  paper, widths 2 to 6")
    for workload in WORKLOADS:
        for decoder, (low, high) in workload.paper.items():
            for width in (2, 4, 6):
                saved = measure(workload, decoder, width)
                print(f"{workload.name:<9} {decoder:<9} {width:>5}  {saved:>7.1f}  {low} to {high}")


def measure(workload: Workload, decoder: str, width: int) -> float:
    """Saving in per cent over one run."""
    runner = FakeRunner(RandomLogits(VOCAB_SIZE, seed=5, scale=12.0))
    limits = EngineLimits(num_blocks=2000, block_size=BLOCK_SIZE, prefix_caching=False)
    engine = Engine(runner, byte_vocabulary(), Registry.load(), limits)
    sampling = Sampling(
        n=width if decoder == "parallel" else 1, max_tokens=workload.answer_len, ignore_eos=True, seed=3
    )
    request = engine.submit(
        GenerationRequest(
            prompt_token_ids=tuple(i % 200 for i in range(workload.prompt_len)),
            sampling=sampling,
            decoder=decoder,
            decoder_params={"width": width} if decoder == "beam" else {},
        ),
        lambda news: None,
    )
    used = unshared = 0
    while engine.step():
        tables = [sequence._table for sequence in request.group.live if len(sequence) > workload.prompt_len]
        used += len({int(block) for table in tables for block in table.blocks})
        unshared += sum(table.num_blocks for table in tables)
    return 100 * (1 - used / unshared)


if __name__ == "__main__":
    main()
