"""`Architecture`: the numbers of a Llama-like model, read from its transformers config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chatserve.models.batch import Float32Array

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
_ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the runner computes.

    Attributes:
        head_dim: a multiple of 8.
        epsilon: of every RMSNorm.
        windows: for each layer, how many tokens (itself included) a token sees; 0 means all.
        has_head_norms: whether q and k are normalised head by head (Qwen3).
        is_tied: whether the embedding is the head.
    """

    model_type: str
    num_layers: int
    hidden_size: int
    inner_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    epsilon: float
    windows: tuple[int, ...]
    has_head_norms: bool
    is_tied: bool

    @property
    def num_qkv_heads(self) -> int:
        return self.num_heads + 2 * self.num_kv_heads


def obstacle(config: Mapping[str, Any]) -> str | None:
    """Why the CPU runner cannot run this model, or None when it can."""
    model_type = config.get("model_type")
    if model_type not in MODEL_TYPES:
        return f"model type {model_type} is not one of {', '.join(MODEL_TYPES)}"
    if config.get("hidden_act", "silu") != "silu":
        return f"activation {config['hidden_act']} is not silu"
    if config.get("mlp_bias"):
        return "its MLP has biases"
    if _head_dim(config) % 8:
        return f"head_dim {_head_dim(config)} is not a multiple of 8"
    rope_type = _rope(config).get("rope_type", "default")
    if rope_type not in _ROPE_TYPES:
        return f"rotary scaling {rope_type} is not one of {', '.join(_ROPE_TYPES)}"
    if _rope(config).get("partial_rotary_factor", 1.0) != 1.0:
        return "only a part of a head is rotated"
    return None


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """`config` is what ``PretrainedConfig.to_dict`` gives, or its keyword arguments; `obstacle` has passed it."""
    num_heads = config["num_attention_heads"]
    return Architecture(
        model_type=config["model_type"],
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        inner_size=config["intermediate_size"],
        num_heads=num_heads,
        num_kv_heads=config.get("num_key_value_heads") or num_heads,
        head_dim=_head_dim(config),
        vocab_size=config["vocab_size"],
        max_model_len=config["max_position_embeddings"],
        epsilon=config["rms_norm_eps"],
        windows=_windows(config),
        has_head_norms=config["model_type"] == "qwen3",
        is_tied=bool(config.get("tie_word_embeddings")),
    )


def rotary_frequencies(config: Mapping[str, Any]) -> Float32Array:
    """Angle a position turns each pair of dimensions by, float32[head_dim / 2], scaling applied.

    Computed like transformers' ``modeling_rope_utils``, in float32, so that angles agree at every position.
    """
    rope, head_dim = _rope(config), _head_dim(config)
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    powers = np.power(np.float32(rope.get("rope_theta", 10000.0)), exponents)
    frequencies: Float32Array = (np.float32(1) / powers).astype(np.float32)
    match rope.get("rope_type", "default"):
        case "linear":
            frequencies /= np.float32(rope["factor"])
        case "llama3":
            frequencies = _stretch_llama3(frequencies, rope)
    return frequencies


def _stretch_llama3(frequencies: Float32Array, rope: Mapping[str, Any]) -> Float32Array:
    """Slow frequencies are divided by `factor`, fast ones kept, those between blended (Llama 3.1)."""
    original_len, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    wavelengths = 2 * math.pi / frequencies
    blend = (original_len / wavelengths - low) / (high - low)
    blended = (1 - blend) * frequencies / factor + blend * frequencies
    stretched = np.where(wavelengths > original_len / low, frequencies / factor, frequencies)
    is_between = (wavelengths >= original_len / high) & (wavelengths <= original_len / low)
    chosen: Float32Array = np.where(is_between, blended, stretched).astype(np.float32)
    return chosen


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return {"rope_theta": config.get("rope_theta", 10000.0), **rope}


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _windows(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Mistral's window holds for all layers; the Qwens' for those that `layer_types` names, if it is used at all."""
    num_layers: int = config["num_hidden_layers"]
    window: int = config.get("sliding_window") or 0
    if config["model_type"] == "mistral":
        return (window,) * num_layers
    if not window or not config.get("use_sliding_window") or config["model_type"] == "llama":
        return (0,) * num_layers
    first = config.get("max_window_layers", 0)
    types = config.get("layer_types") or [
        "sliding_attention" if i >= first else "full_attention" for i in range(num_layers)
    ]
    return tuple(window if kind == "sliding_attention" else 0 for kind in types)
