"""`PackedModel`: weights in the kernels' layout, in one file that a later start reads at once.

The file: 8 bytes with the length of a JSON header, the header, then the arrays, each at a multiple of 64 bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chatserve.errors import ModelLoadError
from chatserve.models.batch import Float32Array
from chatserve.models.cache_folder import scratch_folder
from chatserve.models.cpu.architecture import Architecture
from chatserve.models.cpu.huge_pages import huge_zeros
from chatserve.models.cpu.tiles import Kind, TiledMatrix

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class PackedModel:
    """A model ready for the kernels.

    Attributes:
        matrices: by name: ``layers.<i>.qkv`` (rows of q, k, v), ``.out``, ``.gate_up`` (their tiles in turns),
            ``.down``; ``head``; ``embedding`` unless it is the head.
        vectors: float32: ``norms`` [2 * layers + 1, hidden_size], before attention and MLP of each layer and the last;
            ``frequencies`` [head_dim / 2]; where the model has them ``head_norms`` [layers, q and k, head_dim] and
            biases under a matrix's name and ``.bias``.
    """

    architecture: Architecture
    matrices: Mapping[str, TiledMatrix]
    vectors: Mapping[str, Float32Array]

    def save(self, path: Path) -> None:
        """Write the file so that it appears complete or not at all. Raises ModelLoadError when it cannot be written."""
        arrays: dict[str, NDArray[Any]] = {name: matrix.data for name, matrix in self.matrices.items()}
        arrays |= self.vectors
        entries, position = {}, 0
        for name, array in arrays.items():
            entries[name] = (position, array.dtype.str, array.shape)
            position = -(-(position + array.nbytes) // _ALIGNMENT) * _ALIGNMENT
        kinds = {name: (int(m.kind), m.num_rows, m.num_columns) for name, m in self.matrices.items()}
        header = {"architecture": asdict(self.architecture), "matrices": kinds, "arrays": entries, "bytes": position}
        text = json.dumps(header).encode()
        text += b" " * (-(8 + len(text)) % _ALIGNMENT)
        with scratch_folder(path.parent) as scratch:
            try:
                with (scratch / path.name).open("wb") as file:
                    file.write(len(text).to_bytes(8, "little") + text)
                    for array in arrays.values():
                        file.write(np.ascontiguousarray(array).data)
                        file.write(b"\0" * (-array.nbytes % _ALIGNMENT))
                os.replace(scratch / path.name, path)
            except OSError as error:
                raise ModelLoadError(f"cannot write the packed model to {path.parent}: {error}") from error


def open_packed(path: Path) -> PackedModel | None:
    """Read the file at `path` into huge pages; None when there is none, or it is not whole."""
    with contextlib.suppress(OSError, ValueError, KeyError), path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(start - 8))
        if path.stat().st_size == start + header["bytes"]:
            data = huge_zeros((header["bytes"],), np.uint8)
            if file.readinto(data.data) == len(data):
                return _read(header, data)
    return None


def _read(header: dict[str, Any], data: NDArray[np.uint8]) -> PackedModel:
    arrays = {}
    for name, (position, dtype, shape) in header["arrays"].items():
        kind = np.dtype(dtype)
        arrays[name] = data[position : position + int(np.prod(shape)) * kind.itemsize].view(kind).reshape(shape)
    matrices = {
        name: TiledMatrix(Kind(kind), num_rows, num_columns, arrays.pop(name))
        for name, (kind, num_rows, num_columns) in header["matrices"].items()
    }
    facts = header["architecture"]
    return PackedModel(Architecture(**facts | {"windows": tuple(facts["windows"])}), matrices, arrays)
