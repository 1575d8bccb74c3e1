"""`GgufFile`: the metadata and tensors of a GGUF file (version 2 or 3, little endian), memory-mapped.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The header is parsed here rather than with
`gguf.GGUFReader`, which takes seconds for a vocabulary and does not say which tensor a truncated file lacks.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize
from numpy.typing import NDArray

from chatserve.errors import ModelLoadError
from chatserve.models.batch import Float32Array

_MAGIC = 0x46554747
_DEFAULT_ALIGNMENT = 32
_SCALARS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.BOOL: "<?",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies and how it is stored; `shape` is in NumPy order (rows first)."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    num_bytes: int


class GgufFile:
    """A GGUF file opened for reading.

    Attributes:
        path: the file.
        metadata: every key of the header, as Python values; arrays are lists.
        tensors: the tensors by name; every one lies completely inside the file.
        header_bytes: length of the header; what it holds identifies the file's layout.

    Raises ModelLoadError when the file is not GGUF, is truncated (naming the first tensor cut off) or lists a tensor
    twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._data: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"cannot read {path}: {error}") from error
        cursor = _Cursor(self._data, path)
        num_tensors, num_keys = _read_preamble(cursor)
        self.metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = cursor.string()
            self.metadata[key] = cursor.value(GGUFValueType(cursor.scalar("<I")))
        entries = [_read_entry(cursor) for _ in range(num_tensors)]
        self.header_bytes = cursor.position
        alignment = int(self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
        self._tensor_start = -(-cursor.position // alignment) * alignment
        self.tensors = {entry.name: entry for entry in entries}
        self._check_entries(entries)

    def tensor(self, name: str) -> Float32Array:
        """Read one tensor, dequantised to float32. Raises ModelLoadError when its type cannot be read."""
        entry = self.tensors[name]
        try:
            values = dequantize(self.raw_rows(name), entry.kind)
        except NotImplementedError as error:
            raise ModelLoadError(
                f"{self.path}: tensor {name} has type {entry.kind.name}, which cannot be read"
            ) from error
        return values.astype(np.float32, copy=False).reshape(entry.shape)

    def raw_rows(self, name: str) -> NDArray[np.uint8]:
        """The blocks of one tensor as they are stored: uint8[rows, bytes of a row], or [bytes] for a vector."""
        entry = self.tensors[name]
        start = self._tensor_start + entry.offset
        block_len, block_bytes = GGML_QUANT_SIZES[entry.kind]
        raw = self._data[start : start + entry.num_bytes]
        return raw.reshape(*entry.shape[:-1], entry.shape[-1] // block_len * block_bytes)

    def _check_entries(self, entries: list[TensorEntry]) -> None:
        if len(self.tensors) != len(entries):
            names = [entry.name for entry in entries]
            twice = next(name for name in names if names.count(name) > 1)
            raise ModelLoadError(f"{self.path}: tensor {twice} is listed twice")
        for entry in sorted(entries, key=lambda entry: entry.offset):
            end = self._tensor_start + entry.offset + entry.num_bytes
            if end > len(self._data):
                raise ModelLoadError(
                    f"{self.path} is truncated: tensor {entry.name} ends at byte {end}, the file has {len(self._data)}"
                )


class _Cursor:
    """Reads GGUF primitives one after another."""

    def __init__(self, data: NDArray[np.uint8], path: Path) -> None:
        self._data = data.data
        self.path = path
        self.position = 0

    def take(self, num_bytes: int) -> memoryview:
        end = self.position + num_bytes
        if end > len(self._data):
            raise ModelLoadError(f"{self.path} is truncated: its header goes on after byte {len(self._data)}")
        piece = self._data[self.position : end]
        self.position = end
        return piece

    def scalar(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def string(self) -> str:
        return bytes(self.take(self.scalar("<Q"))).decode("utf-8", errors="replace")

    def value(self, kind: GGUFValueType) -> Any:
        if kind is GGUFValueType.STRING:
            return self.string()
        if kind is not GGUFValueType.ARRAY:
            return self.scalar(_SCALARS[kind])
        item_kind, count = GGUFValueType(self.scalar("<I")), self.scalar("<Q")
        if layout := _SCALARS.get(item_kind):
            return np.frombuffer(self.take(count * struct.calcsize(layout)), layout).tolist()
        return [self.value(item_kind) for _ in range(count)]


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    magic, version = cursor.scalar("<I"), cursor.scalar("<I")
    if magic != _MAGIC:
        raise ModelLoadError(f"{cursor.path} is not a GGUF file")
    if version not in (2, 3):
        raise ModelLoadError(f"{cursor.path} is GGUF version {version}; versions 2 and 3 (little endian) can be read")
    return cursor.scalar("<Q"), cursor.scalar("<Q")


def _read_entry(cursor: _Cursor) -> TensorEntry:
    name = cursor.string()
    shape = tuple(cursor.scalar("<Q") for _ in range(cursor.scalar("<I")))[::-1]
    try:
        kind = GGMLQuantizationType(cursor.scalar("<I"))
    except ValueError as error:
        raise ModelLoadError(f"{cursor.path}: tensor {name} has an unknown type ({error})") from error
    offset = cursor.scalar("<Q")
    block_len, block_bytes = GGML_QUANT_SIZES[kind]
    if not shape or shape[-1] % block_len:
        raise ModelLoadError(f"{cursor.path}: tensor {name} has shape {list(shape)}, not whole blocks of {kind.name}")
    return TensorEntry(name, shape, kind, offset, math.prod(shape) // block_len * block_bytes)
