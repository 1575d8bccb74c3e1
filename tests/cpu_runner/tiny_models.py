"""Tiny random models of every family, and steps over them, for the tests here."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM

from chatserve.models.batch import Batch
from chatserve.models.cpu.cpu_runner import CpuRunner
from chatserve.models.cpu.packing import ArraySource, pack_model

VOCAB_SIZE = 101
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 24},
    "llama-tied-llama3-rope": {
        "model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16,
        "tie_word_embeddings": True, "rope_parameters": LLAMA3_ROPE,
    },
    "llama-with-biases": {
        "model_type": "llama", "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
        "attention_bias": True,
    },
    "mistral": {
        "model_type": "mistral", "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 80,
        "sliding_window": 9,
    },
    "qwen2": {"model_type": "qwen2", "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64},
    "qwen3": {"model_type": "qwen3", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128},
}  # fmt: skip


def stock_model(family: str) -> Any:
    """A transformers model with random weights, biases and norms included."""
    torch.manual_seed(0)
    facts = {
        "vocab_size": VOCAB_SIZE, "hidden_size": 72, "intermediate_size": 100, "num_hidden_layers": 2,
        "max_position_embeddings": 1024, "tie_word_embeddings": False, "rms_norm_eps": 1e-5, **FAMILIES[family],
    }  # fmt: skip
    config = AutoConfig.for_model(facts.pop("model_type"), **facts)
    from_config: Any = AutoModelForCausalLM.from_config
    model = from_config(config).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.3 if weight.ndim == 1 else 0.15)
    return model


def stock_logits(model: Any, token_ids: list[int]) -> NDArray[np.float32]:
    with torch.inference_mode():
        logits: NDArray[np.float32] = model(torch.tensor([token_ids]), use_cache=False).logits[0].numpy()
    return logits


def cpu_runner(
    model: Any,
    weights: str = "fp32",
    num_threads: int = 2,
    num_blocks: int = 64,
    block_size: int = 16,
    kv_dtype: str = "float32",
) -> CpuRunner:
    arrays = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
    packed = pack_model(model.config.to_dict(), ArraySource(arrays), weights, None)
    runner = CpuRunner(packed, "tiny", num_threads, kv_dtype)
    runner.allocate(num_blocks, block_size, 4)
    return runner


def step(*chunks: tuple[list[int], int, list[int]], block_size: int = 16, wanted: list[int] | None = None) -> Batch:
    """A batch of chunks (tokens, position of the first, blocks); the logits of all tokens are wanted unless told."""
    lengths = [len(tokens) for tokens, _, _ in chunks]
    positions = np.concatenate([first + np.arange(len(tokens)) for tokens, first, _ in chunks])
    slots = [
        np.asarray(blocks)[(first + np.arange(len(tokens))) // block_size] * block_size
        for tokens, first, blocks in chunks
    ]
    tables = np.zeros((len(chunks), max(len(blocks) for _, _, blocks in chunks)))
    for row, (_, _, blocks) in zip(tables, chunks, strict=True):
        row[: len(blocks)] = blocks
    arrays = (
        [token for tokens, _, _ in chunks for token in tokens],
        positions,
        np.concatenate(slots) + positions % block_size,
        np.cumsum([0, *lengths]),
        [first + len(tokens) for tokens, first, _ in chunks],
        tables,
        np.arange(sum(lengths)) if wanted is None else wanted,
    )
    return Batch(*(np.asarray(array).astype(np.int32) for array in arrays))
