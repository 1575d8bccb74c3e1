"""`source_digest`: a number that changes when the text of a kernel module does."""

from __future__ import annotations

import hashlib
from pathlib import Path

KERNEL_MODULES = (
    "attention",
    "attention_stages",
    "calls",
    "embedding",
    "entry_points",
    "memory",
    "panels",
    "plan",
    "product_stages",
    "products",
    "rows",
    "step",
    "synchronisation",
    "tiles",
    "vector_code",
)
"""What a step is compiled from."""


def source_digest() -> int:
    """A positive 60-bit digest of the kernel modules."""
    digest = hashlib.sha256()
    for name in KERNEL_MODULES:
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    return int.from_bytes(digest.digest()[:8]) >> 4 | 1
