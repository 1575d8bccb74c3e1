"""Take the quantised blocks of a GGUF file apart, without rounding anything a second time.

A block is 32 neighbouring weights of a row. Format: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
"""

from __future__ import annotations

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from chatserve.models.cpu.tiles import TiledMatrix, tile_int4, tile_int8

EXACT_KINDS = (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0)
"""Types whose blocks the kernels use as they are."""

_Q4_0 = np.dtype([("scale", "<f2"), ("quants", "u1", 16)])
_Q4_1 = np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("quants", "u1", 16)])
_Q8_0 = np.dtype([("scale", "<f2"), ("quants", "i1", 32)])


def tile_blocks(rows: NDArray[np.uint8], kind: GGMLQuantizationType) -> TiledMatrix:
    """Pack rows of raw blocks, uint8[N, bytes of a row], of one of EXACT_KINDS."""
    if kind == GGMLQuantizationType.Q8_0:
        blocks = rows.view(_Q8_0)
        return tile_int8(blocks["quants"].reshape(len(rows), -1), blocks["scale"])
    blocks = rows.view(_Q4_1 if kind == GGMLQuantizationType.Q4_1 else _Q4_0)
    halves = blocks["quants"]
    quants = np.concatenate([halves & 15, halves >> 4], axis=2).reshape(len(rows), -1)
    # Q4_0 means d * (q - 8); its minimum -8 d is exact in float16.
    minima = blocks["minimum"] if kind == GGMLQuantizationType.Q4_1 else blocks["scale"] * np.float16(-8)
    return tile_int4(quants, blocks["scale"], minima)
