"""Tiny random models of every family, float32, and what the stock models answer."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.gpt2 import GPT2Config
from transformers.models.gpt_neox import GPTNeoXConfig
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.opt import OPTConfig
from transformers.models.phi3 import Phi3Config
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

from chatserve.models.batch import Float32Array

VOCAB_SIZE = 97
_BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_MULTI_HEAD = {key: value for key, value in _BASE.items() if key != "num_key_value_heads"}

CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**_BASE),
    "mistral": MistralConfig(**_BASE, head_dim=8, sliding_window=9),
    "qwen2": Qwen2Config(**_BASE),
    "qwen3": Qwen3Config(**_BASE, head_dim=24),
    "gemma2": Gemma2Config(
        **_BASE, head_dim=16, sliding_window=7, attn_logit_softcapping=2.0, query_pre_attn_scalar=20
    ),
    "gemma3": Gemma3TextConfig(
        **_BASE, head_dim=16, sliding_window=5, layer_types=["sliding_attention", "full_attention"]
    ),
    "phi3": Phi3Config(**_BASE, sliding_window=30),
    "gpt2": GPT2Config(
        vocab_size=VOCAB_SIZE, n_embd=48, n_head=4, n_layer=3, n_positions=256, initializer_range=0.3,
        bos_token_id=1, eos_token_id=2,
    ),
    "gpt-neox": GPTNeoXConfig(**_MULTI_HEAD),
    "opt": OPTConfig(
        vocab_size=VOCAB_SIZE, hidden_size=48, word_embed_proj_dim=32, ffn_dim=80, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=256, init_std=0.3,
    ),
}  # fmt: skip


def tiny_model(family: str) -> PreTrainedModel:
    """A fresh model in evaluation mode; the same weights every time."""
    torch.manual_seed(sum(family.encode()))
    from_config: Any = AutoModelForCausalLM.from_config
    model = from_config(deepcopy(CONFIGS[family]), attn_implementation="eager")
    evaluated: PreTrainedModel = model.eval().requires_grad_(False)
    return evaluated


def stock_logits(model: Any, token_ids: list[int]) -> Float32Array:
    """Logits float32[tokens, vocabulary] of the stock model, its own attention, one sequence alone.

    The mask is explicit and all ones: a mask derived from the padding id would hide tokens of that id.
    """
    given = torch.tensor([token_ids])
    output = model(input_ids=given, attention_mask=torch.ones_like(given), use_cache=False)
    logits: Float32Array = output.logits[0].numpy()
    return logits


def random_tokens(rng: np.random.Generator, count: int) -> list[int]:
    """Any ids, special ones included."""
    tokens: list[int] = rng.integers(0, VOCAB_SIZE, count).tolist()
    return tokens
