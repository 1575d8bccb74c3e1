"""Copies and swaps of blocks, seen through the logits: all layers move, in the order swap out, swap in, copy, write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from chatserve.errors import ModelLoadError
from chatserve.models.attention_shape import AttentionShape
from chatserve.models.batch import Batch
from chatserve.models.torch_pages import TorchPages
from chatserve.models.transformers_runner import TransformersRunner
from tests.models.tiny_models import random_tokens, stock_logits, tiny_model

BLOCK_SIZE = 4
TOKENS = random_tokens(np.random.default_rng(0), 7)


@pytest.fixture(params=["kernels", "plain torch"])
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TransformersRunner:
    if request.param == "plain torch":

        def on_torch(shape: AttentionShape, model: Any) -> TorchPages:
            return TorchPages(shape, model.device, model.dtype)

        monkeypatch.setattr("chatserve.models.transformers_runner._choose_backend", on_torch)
    made = TransformersRunner(tiny_model("llama"), "llama")
    made.allocate(num_blocks=12, block_size=BLOCK_SIZE, num_host_blocks=3)
    return made


def prefill(runner: TransformersRunner, table: list[int], tokens: list[int], **moves: NDArray[np.int32]) -> Any:
    """Run all tokens with the blocks of `table`; returns the logits of the last one."""
    return _run(runner, table, tokens, 0, moves)


def decode(runner: TransformersRunner, table: list[int], **moves: NDArray[np.int32]) -> Any:
    """Run the last of TOKENS, the others being in the pages; its slot is written."""
    return _run(runner, table, TOKENS, len(TOKENS) - 1, moves)


def _run(runner: TransformersRunner, table: list[int], tokens: list[int], start: int, moves: dict[str, Any]) -> Any:
    positions = np.arange(start, len(tokens), dtype=np.int32)
    blocks = np.array([table], np.int32)
    slots = blocks[0, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    batch = Batch(
        token_ids=np.array(tokens[start:], np.int32),
        positions=positions,
        slots=slots,
        query_starts=np.array([0, len(positions)], np.int32),
        context_lens=np.array([len(tokens)], np.int32),
        block_tables=blocks,
        wanted=np.array([len(positions) - 1], np.int32),
        **moves,
    )
    return runner.forward(batch).copy()


def pairs(*moves: tuple[int, int]) -> NDArray[np.int32]:
    return np.array(moves, np.int32)


def expected() -> Any:
    return stock_logits(tiny_model("llama"), TOKENS)[-1:]


def test_a_copied_block_serves_like_the_original(runner: TransformersRunner) -> None:
    prefill(runner, [3, 8], TOKENS[:-1])
    logits = decode(runner, [9, 1], copies=pairs((3, 9), (8, 1)))
    np.testing.assert_allclose(logits, expected(), rtol=0, atol=1e-4)
    np.testing.assert_allclose(decode(runner, [3, 8]), expected(), rtol=0, atol=1e-4)


def test_copies_run_in_order(runner: TransformersRunner) -> None:
    """The destination of an earlier pair may be the source or the replacement of a later one."""
    prefill(runner, [3, 8], TOKENS[:-1])
    logits = decode(runner, [5, 3], copies=pairs((3, 4), (8, 3), (4, 5)))
    np.testing.assert_allclose(logits, expected(), rtol=0, atol=1e-4)


def test_a_copy_is_taken_before_the_step_writes(runner: TransformersRunner) -> None:
    """Copy-on-write: the original is overwritten in the very step that copies it."""
    prefill(runner, [3, 8], TOKENS[:-1])
    prefill(runner, [3, 8], random_tokens(np.random.default_rng(9), 8), copies=pairs((3, 6), (8, 7)))
    np.testing.assert_allclose(decode(runner, [6, 7]), expected(), rtol=0, atol=1e-4)


def test_swapping_out_and_in_restores_every_layer(runner: TransformersRunner) -> None:
    prefill(runner, [3, 8], TOKENS[:-1])
    other = random_tokens(np.random.default_rng(9), 8)
    prefill(runner, [3, 8], other, swap_out=pairs((3, 2), (8, 0)))
    logits = decode(runner, [10, 0], swap_in=pairs((2, 10), (0, 0)))
    np.testing.assert_allclose(logits, expected(), rtol=0, atol=1e-4)


def test_blocks_trade_places_within_a_step(runner: TransformersRunner) -> None:
    """One sequence leaves, another returns into the same blocks, and is copied from there, all before the writes."""
    prefill(runner, [3, 8], TOKENS[:-1])
    other = random_tokens(np.random.default_rng(9), 8)
    prefill(runner, [3, 8], other, swap_out=pairs((3, 0), (8, 1)))
    logits = decode(
        runner, [11, 8], swap_out=pairs((8, 2)), swap_in=pairs((0, 3), (1, 8)), copies=pairs((3, 11))
    )  # fmt: skip
    np.testing.assert_allclose(logits, expected(), rtol=0, atol=1e-4)
    returned = _run(runner, [9, 4], other, 4, {"swap_in": pairs((2, 4)), "copies": pairs((4, 9))})
    assert returned.shape == (1, 97)


def test_moves_without_tokens(runner: TransformersRunner) -> None:
    prefill(runner, [3, 8], TOKENS[:-1])
    none = np.empty(0, np.int32)
    empty = Batch(
        none, none, none, np.zeros(1, np.int32), none, np.empty((0, 0), np.int32), none, pairs((3, 1), (8, 2))
    )
    assert runner.forward(empty).shape == (0, 97)
    np.testing.assert_allclose(decode(runner, [1, 2]), expected(), rtol=0, atol=1e-4)


def test_pages_that_do_not_fit_are_refused_at_once() -> None:
    runner = TransformersRunner(tiny_model("llama"), "llama")
    with pytest.raises(ModelLoadError, match="the KV pages need .* GiB, .* GiB of memory are free"):
        runner.allocate(num_blocks=1 << 40, block_size=16)
