"""`GgufSource`: weights for `packing` out of a GGUF file."""

from __future__ import annotations

from typing import Any

from chatserve.models.batch import Float32Array
from chatserve.models.cpu.blocks import EXACT_KINDS, tile_blocks
from chatserve.models.cpu.tiles import TiledMatrix
from chatserve.models.gguf_file import GgufFile
from chatserve.models.gguf_model import ROPE_FACTORS, expected_tensors, join_rotary_halves


class GgufSource:
    """The weights of a GGUF file that `gguf_model.read_weights` can read, by their transformers names."""

    def __init__(self, gguf: GgufFile, config: dict[str, Any]) -> None:
        self._gguf = gguf
        tensors = expected_tensors(gguf.metadata["general.architecture"], config)
        self._tensors = {tensor.name: tensor for tensor in tensors}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def values(self, name: str) -> Float32Array:
        tensor = self._tensors[name]
        rows = self._gguf.tensor(tensor.gguf_name)
        return join_rotary_halves(rows, tensor.interleaved_heads) if tensor.interleaved_heads else rows

    def tiled(self, name: str) -> TiledMatrix | None:
        tensor = self._tensors[name]
        kind = self._gguf.tensors[tensor.gguf_name].kind
        if kind not in EXACT_KINDS:
            return None
        rows = self._gguf.raw_rows(tensor.gguf_name)
        return tile_blocks(
            join_rotary_halves(rows, tensor.interleaved_heads) if tensor.interleaved_heads else rows, kind
        )

    def rotary_divisors(self) -> Float32Array | None:
        """float32[head_dim / 2] that divide the rotary frequencies; files of Llama 3.1 and later have them."""
        return self._gguf.tensor(ROPE_FACTORS) if ROPE_FACTORS in self._gguf.tensors else None
