"""What a GGUF file says about its model: hyperparameters as a transformers config, tensors as transformers weights.

Architectures: `llama` (Llama, SmolLM, Mistral), `qwen2`, `qwen3`. Tensor names and the row order of q and k follow
llama.cpp's ``convert_hf_to_gguf.py``: for `llama` it interleaves the two rotary halves of every head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from chatserve.errors import ModelLoadError
from chatserve.models.batch import Float32Array
from chatserve.models.gguf_file import GgufFile

_Number = TypeVar("_Number", bound=np.generic)

ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPE_FACTORS = "rope_freqs.weight"
"""Divisors of the rotary frequencies, float32[head_dim / 2]; files of Llama 3.1 and later carry them."""


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """A tensor the architecture needs: names in GGUF and transformers, its shape, its interleaved heads."""

    gguf_name: str
    name: str
    shape: tuple[int, ...]
    interleaved_heads: int = 0


def read_config(gguf: GgufFile) -> dict[str, Any]:
    """Hyperparameters as keyword arguments of a transformers config class, `model_type` included.

    Raises ModelLoadError for an unsupported architecture, a missing key, or a kind of rotary scaling not known here.
    """
    architecture = str(gguf.metadata.get("general.architecture"))
    if architecture not in ARCHITECTURES:
        raise ModelLoadError(
            f"{gguf.path}: architecture {architecture!r} is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    keys = _Keys(gguf, architecture)
    num_heads = keys.required("attention.head_count")
    head_dim = keys.optional("attention.key_length", keys.required("embedding_length") // num_heads)
    window = keys.optional("attention.sliding_window", None) if architecture == "llama" else None
    _check_rotary(keys, head_dim)
    config = {
        "model_type": "mistral" if window else architecture,
        "vocab_size": keys.optional("vocab_size", len(gguf.metadata.get("tokenizer.ggml.tokens", ()))),
        "hidden_size": keys.required("embedding_length"),
        "intermediate_size": keys.required("feed_forward_length"),
        "num_hidden_layers": keys.required("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": keys.optional("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": keys.required("context_length"),
        "rms_norm_eps": keys.required("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_type": "default", "rope_theta": keys.optional("rope.freq_base", 10000.0)},
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "bos_token_id": gguf.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": gguf.metadata.get("tokenizer.ggml.eos_token_id"),
    }
    return config | ({"sliding_window": window} if window else {})


def read_weights(gguf: GgufFile, config: dict[str, Any]) -> Iterator[tuple[str, Float32Array]]:
    """Yield every weight under its transformers name, float32, one at a time.

    Raises ModelLoadError, naming the tensor, before anything is read when one is missing, left over or misshaped.
    """
    for tensor in check_tensors(gguf, config):
        values = gguf.tensor(tensor.gguf_name)
        yield tensor.name, join_rotary_halves(values, tensor.interleaved_heads) if tensor.interleaved_heads else values
    if ROPE_FACTORS in gguf.tensors:
        yield ROPE_FACTORS, gguf.tensor(ROPE_FACTORS)


class _Keys:
    """Hyperparameters of one architecture, whose names it prefixes."""

    def __init__(self, gguf: GgufFile, architecture: str) -> None:
        self.gguf, self._architecture = gguf, architecture

    def required(self, name: str) -> Any:
        key = f"{self._architecture}.{name}"
        if key not in self.gguf.metadata:
            raise ModelLoadError(f"{self.gguf.path}: the header lacks {key}")
        return self.gguf.metadata[key]

    def optional(self, name: str, default: Any) -> Any:
        return self.gguf.metadata.get(f"{self._architecture}.{name}", default)


def _check_rotary(keys: _Keys, head_dim: int) -> None:
    scaling = keys.optional("rope.scaling.type", "none")
    if scaling != "none":
        raise ModelLoadError(f"{keys.gguf.path}: rotary scaling {scaling!r} is not supported")
    rotary_dim = keys.optional("rope.dimension_count", head_dim)
    if rotary_dim != head_dim:
        raise ModelLoadError(
            f"{keys.gguf.path}: rotary embedding over {rotary_dim} of {head_dim} dimensions is not supported"
        )


def check_tensors(gguf: GgufFile, config: dict[str, Any]) -> list[ExpectedTensor]:
    """The tensors of the architecture, all of which the file has.

    Raises ModelLoadError, naming the tensor, when one is missing, left over or misshaped.
    """
    expected = expected_tensors(gguf.metadata["general.architecture"], config)
    for tensor in expected:
        if tensor.gguf_name not in gguf.tensors:
            raise ModelLoadError(f"{gguf.path}: tensor {tensor.gguf_name} is missing")
        shape = gguf.tensors[tensor.gguf_name].shape
        if shape != tensor.shape:
            raise ModelLoadError(
                f"{gguf.path}: tensor {tensor.gguf_name} has shape {list(shape)}, expected {list(tensor.shape)}"
            )
    known = {tensor.gguf_name for tensor in expected} | {ROPE_FACTORS}
    if left_over := [name for name in gguf.tensors if name not in known]:
        raise ModelLoadError(f"{gguf.path}: tensor {left_over[0]} is left over: nothing in this architecture uses it")
    return expected


def expected_tensors(architecture: str, config: dict[str, Any]) -> list[ExpectedTensor]:
    """All tensors that a model of `architecture` with this config has."""
    hidden, vocab_size = config["hidden_size"], config["vocab_size"]
    tensors = [
        ExpectedTensor("token_embd.weight", "model.embed_tokens.weight", (vocab_size, hidden)),
        ExpectedTensor("output_norm.weight", "model.norm.weight", (hidden,)),
    ]
    if not config["tie_word_embeddings"]:
        tensors.append(ExpectedTensor("output.weight", "lm_head.weight", (vocab_size, hidden)))
    for layer in range(config["num_hidden_layers"]):
        tensors.extend(_layer_tensors(architecture, config, f"blk.{layer}.", f"model.layers.{layer}."))
    return tensors


def _layer_tensors(architecture: str, config: dict[str, Any], source: str, target: str) -> Iterator[ExpectedTensor]:
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    is_interleaved = architecture == "llama"
    projections = {
        "attn_q": ("self_attn.q_proj", (heads * head_dim, hidden), heads * is_interleaved),
        "attn_k": ("self_attn.k_proj", (kv_heads * head_dim, hidden), kv_heads * is_interleaved),
        "attn_v": ("self_attn.v_proj", (kv_heads * head_dim, hidden), 0),
        "attn_output": ("self_attn.o_proj", (hidden, heads * head_dim), 0),
        "ffn_gate": ("mlp.gate_proj", (inner, hidden), 0),
        "ffn_up": ("mlp.up_proj", (inner, hidden), 0),
        "ffn_down": ("mlp.down_proj", (hidden, inner), 0),
    }
    norms = {"attn_norm": ("input_layernorm", hidden), "ffn_norm": ("post_attention_layernorm", hidden)}
    if architecture == "qwen3":
        norms |= {"attn_q_norm": ("self_attn.q_norm", head_dim), "attn_k_norm": ("self_attn.k_norm", head_dim)}
    for name, (module, shape, interleaved) in projections.items():
        yield ExpectedTensor(f"{source}{name}.weight", f"{target}{module}.weight", shape, interleaved)
        if architecture == "qwen2" and name in ("attn_q", "attn_k", "attn_v"):
            yield ExpectedTensor(f"{source}{name}.bias", f"{target}{module}.bias", shape[:1])
    for name, (module, width) in norms.items():
        yield ExpectedTensor(f"{source}{name}.weight", f"{target}{module}.weight", (width,))


def join_rotary_halves(rows: NDArray[_Number], num_heads: int) -> NDArray[_Number]:
    """Undo the interleaving: file row 2i + j of a head is row j * head_dim / 2 + i of the model."""
    pairs = rows.reshape(num_heads, -1, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
