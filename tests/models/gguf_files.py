"""Small GGUF files of random models, written with the `gguf` package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import quantize
from numpy.typing import NDArray

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 96, 4, 2, 16, 2
TOKENS = ["<|end|>", "<|user|>", *sorted(set("abcdefghijklmnopqrstuvwxyzĠ0123456789.,")), "ab", "Ġa"]
MERGES = ["a b", "Ġ a"]
CHAT_TEMPLATE = "{% for m in messages %}{{ bos_token }}{{ m.content }}{{ eos_token }}{% endfor %}"


def tensors_of(architecture: str, seed: int = 0, head_dim: int = HEAD_DIM) -> dict[str, NDArray[np.float32]]:
    """All tensors of a tiny model under their GGUF names; the head is tied to the embedding."""
    rng = np.random.default_rng(seed)

    def random(*shape: int) -> NDArray[np.float32]:
        return (rng.standard_normal(shape) * 0.2).astype(np.float32)

    tensors = {"token_embd.weight": random(len(TOKENS), HIDDEN), "output_norm.weight": 1 + random(HIDDEN)}
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        tensors |= {
            f"{block}attn_norm.weight": 1 + random(HIDDEN),
            f"{block}ffn_norm.weight": 1 + random(HIDDEN),
            f"{block}attn_q.weight": random(HEADS * head_dim, HIDDEN),
            f"{block}attn_k.weight": random(KV_HEADS * head_dim, HIDDEN),
            f"{block}attn_v.weight": random(KV_HEADS * head_dim, HIDDEN),
            f"{block}attn_output.weight": random(HIDDEN, HEADS * head_dim),
            f"{block}ffn_gate.weight": random(INNER, HIDDEN),
            f"{block}ffn_up.weight": random(INNER, HIDDEN),
            f"{block}ffn_down.weight": random(HIDDEN, INNER),
        }
        if architecture == "qwen3":
            tensors |= {f"{block}attn_{side}_norm.weight": 1 + random(head_dim) for side in "qk"}
        if architecture == "qwen2":
            widths = {"q": HEADS * head_dim, "k": KV_HEADS * head_dim, "v": KV_HEADS * head_dim}
            tensors |= {f"{block}attn_{side}.bias": random(width) for side, width in widths.items()}
    return tensors


def write_gguf(
    path: Path,
    architecture: str = "llama",
    tensors: dict[str, NDArray[np.float32]] | None = None,
    kind: Kind = Kind.F32,
    head_dim: int = HEAD_DIM,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a GGUF file; matrices are stored as `kind`, vectors as float32. `metadata` adds unsigned or text keys."""
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(head_dim)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    _write_tokenizer(writer)
    for key, value in (metadata or {}).items():
        writer.add_key_value(key, value, _kind_of(value))
    for name, values in (tensors_of(architecture) if tensors is None else tensors).items():
        stored = kind if values.ndim == 2 else Kind.F32
        writer.add_tensor(name, quantize(values, stored), raw_dtype=None if stored is Kind.F32 else stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_tokenizer(writer: GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3] + [1] * (len(TOKENS) - 2))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_chat_template(CHAT_TEMPLATE)


def _kind_of(value: Any) -> Any:
    from gguf.constants import GGUFValueType

    return GGUFValueType.STRING if isinstance(value, str) else GGUFValueType.UINT32
