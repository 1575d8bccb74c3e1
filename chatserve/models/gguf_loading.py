"""Load a GGUF file: a transformers model on its converted, memory-mapped weights, with the file's own vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PretrainedConfig, PreTrainedModel

from chatserve.models.cache_folder import cache_folder
from chatserve.models.converted import ConvertedModel, open_converted
from chatserve.models.gguf_model import ROPE_FACTORS
from chatserve.models.loading import LoadedModel, with_text
from chatserve.models.placement import Placement
from chatserve.models.transformers_runner import TransformersRunner


def load_gguf(path: Path, name: str, placement: Placement) -> LoadedModel:
    """Load the GGUF file at `path`. Raises ModelLoadError as `open_converted` and `TransformersRunner` do."""
    converted = open_converted(path, cache_folder())
    return with_text(TransformersRunner(build_model(converted, placement), name), converted)


def build_model(converted: ConvertedModel, placement: Placement) -> PreTrainedModel:
    """The model in evaluation mode; on the CPU in float32 its weights are pages of the cache file, read on first use.

    Only weights take the placement's type: rotary frequencies in half precision would be wrong at high positions.
    """
    config_class, model_class, rotary_class = _classes(converted.config["model_type"])
    config = config_class(**{key: value for key, value in converted.config.items() if key != "model_type"})
    with torch.device("meta"):
        model = model_class(config)
    weights = {name: weight.to(placement.dtype) for name, weight in load_file(converted.float32_weights()).items()}
    rope_factors = weights.pop(ROPE_FACTORS, None)
    if config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, strict=True, assign=True)
    rotary = rotary_class(config)  # its tables are not weights, so the meta model has none
    if rope_factors is not None:
        rotary.inv_freq /= rope_factors.float()
    model.model.rotary_emb = rotary
    evaluated: PreTrainedModel = model.to(placement.device).eval().requires_grad_(False)
    return evaluated


def _classes(model_type: str) -> tuple[type[PretrainedConfig], Any, Any]:
    """Config, model and rotary embedding classes; only the module of one family is imported."""
    match model_type:
        case "qwen2":
            from transformers.models.qwen2 import modeling_qwen2 as qwen2

            return qwen2.Qwen2Config, qwen2.Qwen2ForCausalLM, qwen2.Qwen2RotaryEmbedding
        case "qwen3":
            from transformers.models.qwen3 import modeling_qwen3 as qwen3

            return qwen3.Qwen3Config, qwen3.Qwen3ForCausalLM, qwen3.Qwen3RotaryEmbedding
        case "mistral":
            from transformers.models.mistral import modeling_mistral as mistral

            return mistral.MistralConfig, mistral.MistralForCausalLM, mistral.MistralRotaryEmbedding
        case _:
            from transformers.models.llama import modeling_llama as llama

            return llama.LlamaConfig, llama.LlamaForCausalLM, llama.LlamaRotaryEmbedding
