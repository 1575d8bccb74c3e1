"""Pack a model's weights for the kernels: from the blocks of a GGUF file, or from float32 arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from chatserve.models.batch import Float32Array
from chatserve.models.cpu.architecture import Architecture, read_architecture, rotary_frequencies
from chatserve.models.cpu.packed_file import PackedModel
from chatserve.models.cpu.tiles import TiledMatrix, quantise_int8, tile_float


class WeightSource(Protocol):
    """Where weights come from, by their transformers names."""

    def __contains__(self, name: str) -> bool: ...

    def values(self, name: str) -> Float32Array:
        """A weight as float32, in transformers' shape."""

    def tiled(self, name: str) -> TiledMatrix | None:
        """The matrix packed just as it is stored, or None when the kernels have no such type."""


class ArraySource:
    """Weights given as arrays, such as a state dictionary turned to numpy."""

    def __init__(self, arrays: Mapping[str, Float32Array]) -> None:
        self._arrays = arrays

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def values(self, name: str) -> Float32Array:
        return self._arrays[name].astype(np.float32, copy=False)

    def tiled(self, name: str) -> TiledMatrix | None:
        return None


def pack_model(
    config: Mapping[str, Any], source: WeightSource, weights: str, rotary_divisors: Float32Array | None
) -> PackedModel:
    """Pack all weights of `source`.

    Args:
        config: keyword arguments of the transformers config class, `model_type` included, passed by `obstacle`.
        source: the weights.
        weights: ``native`` keeps blocks that the kernels understand and rounds others to 8 bits, ``int8`` rounds all to
            8 bits, ``fp32`` keeps all exactly.
        rotary_divisors: float32[head_dim / 2] that divide the rotary frequencies, or None.
    """
    architecture = read_architecture(config)
    matrices = dict(_matrices(architecture, source, weights))
    frequencies = rotary_frequencies(config)
    vectors = {
        "norms": _norms(architecture, source),
        "frequencies": frequencies if rotary_divisors is None else frequencies / rotary_divisors,
    }
    if architecture.has_head_norms:
        vectors["head_norms"] = _head_norms(architecture, source)
    return PackedModel(architecture, matrices, vectors | dict(_biases(architecture, source)))


def _matrices(architecture: Architecture, source: WeightSource, weights: str) -> Iterator[tuple[str, TiledMatrix]]:
    for layer in range(architecture.num_layers):
        attention, mlp = f"model.layers.{layer}.self_attn.", f"model.layers.{layer}.mlp."
        yield (
            f"layers.{layer}.qkv",
            _join([f"{attention}{part}_proj.weight" for part in "qkv"], source, weights, _stack),
        )
        yield f"layers.{layer}.out", _join([f"{attention}o_proj.weight"], source, weights, _stack)
        yield (
            f"layers.{layer}.gate_up",
            _join([f"{mlp}{part}_proj.weight" for part in ("gate", "up")], source, weights, _alternate),
        )
        yield f"layers.{layer}.down", _join([f"{mlp}down_proj.weight"], source, weights, _stack)
    head = "model.embed_tokens.weight" if architecture.is_tied else "lm_head.weight"
    yield "head", _join([head], source, weights, _stack)
    if not architecture.is_tied:
        yield "embedding", _join(["model.embed_tokens.weight"], source, weights, _stack)


def _join(
    names: list[str], source: WeightSource, weights: str, arrange: Callable[[list[TiledMatrix]], TiledMatrix]
) -> TiledMatrix:
    """Pack the parts of one matrix in one kind: their own when they share it and it is wanted, else what `weights`
    says."""
    stored = [source.tiled(name) for name in names] if weights == "native" else []
    parts = [part for part in stored if part is not None]
    if len(parts) < len(names) or len({part.kind for part in parts}) > 1:
        pack = tile_float if weights == "fp32" else quantise_int8
        parts = [pack(source.values(name)) for name in names]
    return arrange(parts)


def _stack(parts: list[TiledMatrix]) -> TiledMatrix:
    """Rows of the parts below each other; all but the last have whole tiles."""
    num_rows = sum(part.num_rows for part in parts)
    data = np.concatenate([part.data for part in parts]) if len(parts) > 1 else parts[0].data
    return TiledMatrix(parts[0].kind, num_rows, parts[0].num_columns, data)


def _alternate(parts: list[TiledMatrix]) -> TiledMatrix:
    """Tiles of the parts in turns."""
    data = np.stack([part.data for part in parts], axis=1).reshape(-1, *parts[0].data.shape[1:])
    return TiledMatrix(parts[0].kind, 8 * len(data), parts[0].num_columns, data)


def _norms(architecture: Architecture, source: WeightSource) -> Float32Array:
    names = [
        f"model.layers.{layer}.{name}_layernorm.weight"
        for layer in range(architecture.num_layers)
        for name in ("input", "post_attention")
    ]
    return np.stack([source.values(name) for name in [*names, "model.norm.weight"]])


def _head_norms(architecture: Architecture, source: WeightSource) -> Float32Array:
    return np.stack(
        [
            [source.values(f"model.layers.{layer}.self_attn.{part}_norm.weight") for part in "qk"]
            for layer in range(architecture.num_layers)
        ]
    )


def _biases(architecture: Architecture, source: WeightSource) -> Iterator[tuple[str, Float32Array]]:
    for layer in range(architecture.num_layers):
        prefix = f"model.layers.{layer}.self_attn."
        if f"{prefix}q_proj.bias" in source:
            yield (
                f"layers.{layer}.qkv.bias",
                np.concatenate([source.values(f"{prefix}{part}_proj.bias") for part in "qkv"]),
            )
        if f"{prefix}o_proj.bias" in source:
            yield f"layers.{layer}.out.bias", source.values(f"{prefix}o_proj.bias")
