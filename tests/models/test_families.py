"""Every family of models gives the stock model's logits through pages, whatever the batch, chunks and blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from chatserve.errors import ModelLoadError
from chatserve.models.attention_shape import AttentionShape
from chatserve.models.torch_pages import TorchPages
from chatserve.models.transformers_runner import TransformersRunner
from tests.models.paging import Paged, Pager
from tests.models.tiny_models import CONFIGS, VOCAB_SIZE, random_tokens, stock_logits, tiny_model

TOLERANCE = 1e-5  # of the largest logit


def assert_close(logits: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    assert logits.dtype == np.float32
    assert np.abs(logits - expected).max() <= TOLERANCE * max(1.0, float(np.abs(expected).max()))


def runner_for(family: str, block_size: int, num_blocks: int = 300) -> TransformersRunner:
    runner = TransformersRunner(tiny_model(family), family)
    runner.allocate(num_blocks, block_size)
    return runner


def run_ragged(
    runner: TransformersRunner, pager: Pager, sequences: list[Paged], rng: np.random.Generator
) -> list[np.ndarray[Any, Any]]:
    """Run all sequences to their ends in steps of random chunks; returns the logits of every token of each."""
    rows: list[list[Any]] = [[] for _ in sequences]
    while pending := [i for i, s in enumerate(sequences) if s.num_computed < len(s.token_ids)]:
        chosen = [i for i in pending if rng.random() < 0.7] or pending[:1]
        work = []
        for i in chosen:
            left = len(sequences[i].token_ids) - sequences[i].num_computed
            work.append((sequences[i], int(rng.choice([1, min(left, 5), min(left, 23), left]))))
        logits = runner.forward(pager.batch(work)).copy()
        parts = np.split(logits, np.cumsum([count for _, count in work])[:-1])
        for i, part in zip(chosen, parts, strict=True):
            rows[i].extend(part)
    return [np.array(sequence_rows) for sequence_rows in rows]


@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
@pytest.mark.parametrize("family", CONFIGS)
def test_logits_equal_the_stock_model(family: str, block_size: int) -> None:
    rng = np.random.default_rng(block_size)
    stock = tiny_model(family)
    runner = runner_for(family, block_size)
    sequences = [Paged(random_tokens(rng, length)) for length in (1, 70, 13, 37)]
    answers = run_ragged(runner, Pager(300, block_size, rng), sequences, rng)
    for sequence, logits in zip(sequences, answers, strict=True):
        assert_close(logits, stock_logits(stock, sequence.token_ids))


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_plain_torch_attention_agrees_too(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of devices without kernels of their own, run on the CPU."""

    def on_torch(shape: AttentionShape, model: Any) -> TorchPages:
        return TorchPages(shape, model.device, model.dtype)

    monkeypatch.setattr("chatserve.models.transformers_runner._choose_backend", on_torch)
    rng = np.random.default_rng(0)
    runner = runner_for(family, 4)
    sequences = [Paged(random_tokens(rng, length)) for length in (40, 9)]
    answers = run_ragged(runner, Pager(300, 4, rng), sequences, rng)
    for sequence, logits in zip(sequences, answers, strict=True):
        assert_close(logits, stock_logits(tiny_model(family), sequence.token_ids))


@pytest.mark.parametrize("family", ["llama", "opt", "gpt2"])
def test_tokens_run_again_without_being_written(family: str) -> None:
    rng = np.random.default_rng(1)
    runner = runner_for(family, 4)
    pager = Pager(300, 4, rng)
    sequence = Paged(random_tokens(rng, 30))
    runner.forward(pager.batch([(sequence, 20)], wanted="none"))
    logits = runner.forward(pager.batch([(sequence, 10)], rerun=6))
    assert_close(logits, stock_logits(tiny_model(family), sequence.token_ids)[14:])


def test_a_token_alone_is_run_again_for_its_logits() -> None:
    rng = np.random.default_rng(2)
    runner = runner_for("llama", 16)
    pager = Pager(300, 16, rng)
    sequence = Paged(random_tokens(rng, 20))
    first = runner.forward(pager.batch([(sequence, 20)], wanted="last")).copy()
    again = runner.forward(pager.batch([(sequence, 0)], rerun=1))
    assert_close(again, first)


def test_wanted_rows_only() -> None:
    rng = np.random.default_rng(3)
    runner = runner_for("llama", 16)
    pager = Pager(300, 16, rng)
    long, short = Paged(random_tokens(rng, 20)), Paged(random_tokens(rng, 3))
    batch = pager.batch([(long, 20), (short, 3)])
    batch.wanted = np.array([4, 19, 22], np.int32)
    logits = runner.forward(batch)
    stock = tiny_model("llama")
    expected = np.concatenate([stock_logits(stock, long.token_ids)[[4, 19]], stock_logits(stock, short.token_ids)[2:]])
    assert_close(logits, expected)


@pytest.mark.parametrize("family", CONFIGS)
def test_no_row_wanted(family: str) -> None:
    rng = np.random.default_rng(4)
    runner = runner_for(family, 16)
    batch = Pager(300, 16, rng).batch([(Paged([5, 6, 7]), 3)], wanted="none")
    assert runner.forward(batch).shape == (0, VOCAB_SIZE)


def test_padding_id_in_the_history_is_a_token_like_any_other() -> None:
    """Case j7: padding and end-of-turn share an id; masks come from lengths, alone and beside a longer request."""
    pad = CONFIGS["llama"].pad_token_id
    chat = [1, 9, 10, pad, 11, 12, pad, 13, 1, 14, pad, 15]
    rng = np.random.default_rng(5)
    expected = stock_logits(tiny_model("llama"), chat)
    runner = runner_for("llama", 4)
    pager = Pager(300, 4, rng)
    assert_close(runner.forward(pager.batch([(Paged(chat), len(chat))])).copy(), expected)
    batch = pager.batch([(Paged(random_tokens(rng, 40)), 40), (Paged(chat), len(chat))])
    assert_close(runner.forward(batch)[40:], expected)


def test_facts_about_the_model() -> None:
    info = runner_for("mistral", 16).info
    assert (info.name, info.vocab_size, info.max_model_len) == ("mistral", VOCAB_SIZE, 256)
    assert info.kv_bytes_per_token == 2 * 2 * 2 * 8 * 4  # layers, K and V, KV heads, head_dim, float32
    assert not info.is_batch_invariant
    assert info.description == "mistral, 2 layers, float32, cpu"


class TestRefusals:
    """A model that paged attention would run wrongly is refused before it serves, with the reason."""

    def refusal(self, config: Any) -> str:
        from transformers import AutoModelForCausalLM

        from_config: Any = AutoModelForCausalLM.from_config
        model = from_config(config)
        with pytest.raises(ModelLoadError) as caught:
            TransformersRunner(model.eval(), "some/model")
        message = str(caught.value)
        assert message.startswith(f"some/model: {type(model).__name__} cannot be served: ")
        return message

    def test_a_model_that_ignores_the_interface(self) -> None:
        from transformers import MambaConfig

        config = MambaConfig(vocab_size=VOCAB_SIZE, hidden_size=16, num_hidden_layers=2, state_size=4)
        assert "0 of its 2 layers use transformers' attention interface" in self.refusal(config)

    def test_a_model_that_ignores_the_interface_has_large_layers(self) -> None:
        """Its layers are packed only once it is known that it can be served."""
        from transformers import MambaConfig

        config = MambaConfig(vocab_size=VOCAB_SIZE, hidden_size=1024, num_hidden_layers=1, state_size=4)
        assert "0 of its 1 layers use transformers' attention interface" in self.refusal(config)

    def test_values_of_another_size_than_keys(self) -> None:
        from transformers import DeepseekV3Config

        config = DeepseekV3Config(
            vocab_size=VOCAB_SIZE, hidden_size=64, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8,
            qk_nope_head_dim=16, v_head_dim=8, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
            first_k_dense_replace=1,
        )  # fmt: skip
        assert "its keys and values have different sizes" in self.refusal(config)

    def test_attention_sinks(self) -> None:
        from transformers import GptOssConfig

        config = GptOssConfig(
            vocab_size=VOCAB_SIZE, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, num_local_experts=2, num_experts_per_tok=1,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        )  # fmt: skip
        assert "its attention takes s_aux" in self.refusal(config)

    def test_rotary_embedding_that_depends_on_the_batch(self) -> None:
        from transformers import LlamaConfig

        rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
        config = LlamaConfig(**{**CONFIGS["llama"].to_dict(), "rope_parameters": rope})
        assert "its rotary embedding (dynamic) changes with the longest sequence" in self.refusal(config)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_near_float32(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(6)
    model: Any = tiny_model("qwen3")
    runner = TransformersRunner(model.to(dtype), "half")
    runner.allocate(20, 16)
    sequence = Paged(random_tokens(rng, 30))
    logits = runner.forward(Pager(20, 16, rng).batch([(sequence, 30)]))
    stock: Any = tiny_model("qwen3")
    given = torch.tensor([sequence.token_ids])
    expected = stock.to(dtype)(input_ids=given, use_cache=False).logits[0].float().numpy()
    scale = np.abs(expected).max()
    assert np.abs(logits - expected).max() < 16 * torch.finfo(dtype).eps * scale
