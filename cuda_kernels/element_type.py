"""`ElementType`: the number formats of pages, queries and outputs, and how a kernel reads and writes each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuda_kernels import intrinsics

CHUNK_BYTES = 16
"""Pages are read and written in accesses of this many bytes."""


@dataclass(frozen=True, slots=True)
class ElementType:
    """A number format.

    Attributes:
        name: as torch calls it.
        num_bytes: of one number.
        unpack: device function, a chunk's four words to its float32 numbers.
        pack: device function, the next one or two float32 to a word; rounds to nearest even.
        multiply: device function, a product on tensor cores with float32 sums; None where they do not have the format.
    """

    name: str
    num_bytes: int
    unpack: Any
    pack: Any
    multiply: Any = None

    @property
    def per_word(self) -> int:
        return 4 // self.num_bytes

    @property
    def per_chunk(self) -> int:
        return CHUNK_BYTES // self.num_bytes


FLOAT32 = ElementType("float32", 4, intrinsics.unpack_float32, intrinsics.pack_float32)
FLOAT16 = ElementType("float16", 2, intrinsics.unpack_float16, intrinsics.pack_float16, intrinsics.multiply_float16)
BFLOAT16 = ElementType(
    "bfloat16", 2, intrinsics.unpack_bfloat16, intrinsics.pack_bfloat16, intrinsics.multiply_bfloat16
)
ELEMENT_TYPES = {kind.name: kind for kind in (FLOAT32, FLOAT16, BFLOAT16)}
