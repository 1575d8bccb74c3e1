"""`KernelSet`: the kernels that one model needs, compiled or taken from the cache folder."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import cuda_kernels
from chatserve.models.attention_shape import AttentionShape
from chatserve.models.cache_folder import cache_folder
from cuda_kernels.blocks import compile_copy, compile_gather, compile_scatter
from cuda_kernels.combine import compile_combine
from cuda_kernels.compiled import CompiledKernel
from cuda_kernels.decode import DecodeVariant, compile_decode, heads_per_block
from cuda_kernels.element_type import ELEMENT_TYPES, FLOAT32
from cuda_kernels.extend import compile_extend
from cuda_kernels.write import compile_write

logger = logging.getLogger(__name__)

Compiler = Callable[[], CompiledKernel]


@dataclass(frozen=True, slots=True)
class KernelSet:
    """Kernels of one attention shape and page format.

    Attributes:
        write: new K and V of the pages' format into their slots.
        write_float32: the same for float32 K and V, rounded.
        extend: chunks of tokens, on tensor cores; None for float32, where every token is a row of `decode`.
    """

    write: CompiledKernel
    write_float32: CompiledKernel
    decode: CompiledKernel
    combine: CompiledKernel
    extend: CompiledKernel | None
    copy: CompiledKernel
    gather: CompiledKernel
    scatter: CompiledKernel

    @property
    def all(self) -> list[CompiledKernel]:
        """Each kernel once."""
        kernels = {id(kernel): kernel for kernel in (getattr(self, name) for name in self.__slots__) if kernel}
        return list(kernels.values())


def is_supported(shape: AttentionShape, dtype: str) -> bool:
    """Whether there are kernels for heads of this size in this format, a name as torch has it."""
    return dtype in ELEMENT_TYPES and shape.head_dim % 16 == 0 and shape.head_dim <= 256


def compile_kernels(shape: AttentionShape, dtype: str) -> KernelSet:
    """All kernels for `shape` with pages of `dtype`. The first time takes some seconds for each, later ones none."""
    element, head_dim = ELEMENT_TYPES[dtype], shape.head_dim
    _, heads = heads_per_block(shape.num_query_heads // shape.num_kv_heads)
    variant = DecodeVariant(element, head_dim, heads, shape.has_softcap)
    logger.info(
        "loading the CUDA kernels for %s heads of %d (compiled once, which takes half a minute)", dtype, head_dim
    )
    write_float32 = cached_kernel(
        f"write float32 {dtype} {head_dim}", lambda: compile_write(FLOAT32, element, head_dim)
    )
    write = write_float32
    extend = None
    if element is not FLOAT32:
        cap = shape.has_softcap
        write = cached_kernel(f"write {dtype} {dtype} {head_dim}", lambda: compile_write(element, element, head_dim))
        extend = cached_kernel(
            f"extend {dtype} {head_dim} {cap}", lambda: compile_extend(element, head_dim, has_softcap=cap)
        )
    return KernelSet(
        write=write,
        write_float32=write_float32,
        decode=cached_kernel(f"decode {dtype} {head_dim} {heads} {shape.has_softcap}", lambda: compile_decode(variant)),
        combine=cached_kernel(f"combine {dtype} {head_dim}", lambda: compile_combine(element, head_dim)),
        extend=extend,
        copy=cached_kernel("copy", compile_copy),
        gather=cached_kernel("gather", compile_gather),
        scatter=cached_kernel("scatter", compile_scatter),
    )


def cached_kernel(name: str, compiler: Compiler) -> CompiledKernel:
    """The kernel from the cache folder, or compiled and put there; `name` says all that tells it from others.

    A file is named after that, our sources and the compilers' versions.
    """
    folder = cache_folder() / "cuda"
    path = folder / f"{hashlib.sha256(f'{_fingerprint()} {name}'.encode()).hexdigest()[:24]}.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return CompiledKernel(**{**fields, "parameters": tuple(fields["parameters"])})
    except (OSError, ValueError, TypeError, KeyError):
        kernel = compiler()
    folder.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(asdict(kernel)), encoding="utf-8")
    temporary.replace(path)
    return kernel


@cache
def _fingerprint() -> str:
    digest = hashlib.sha256()
    for source in sorted(Path(cuda_kernels.__path__[0]).glob("*.py")):
        digest.update(source.read_bytes())
    versions = [version(package) for package in ("numba-cuda", "nvidia-nvvm")]
    return " ".join([digest.hexdigest(), *versions])
