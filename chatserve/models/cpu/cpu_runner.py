"""`CpuRunner`: a `Runner` for models of the Llama family on the CPU."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chatserve.models.batch import Batch, Float32Array, Int32Array
from chatserve.models.cpu.buffers import Buffers, padded
from chatserve.models.cpu.entry_points import attend_entry, multiply_entry
from chatserve.models.cpu.packed_file import PackedModel
from chatserve.models.cpu.pages import Pages
from chatserve.models.cpu.plan import MATRIX, PLAN
from chatserve.models.cpu.products import Form
from chatserve.models.cpu.step import cut_work, run_step, stage_cycles, stage_names
from chatserve.models.cpu.tiles import Kind, TiledMatrix
from chatserve.models.cpu.tuning import fastest_rows_at_once
from chatserve.models.runner import ModelInfo

_NARROW_INPUTS = ("gate_up", "down")
"""Inputs of 4-bit matrices that are rounded to 8 bits unless 16 are asked for; ``qkv`` and ``out`` always get 16.

A product of many rows is twice as fast in 8 bits; with few rows memory decides. How close the default model then is to
float32 was measured, see ``docs/log.md``.
"""


class CpuRunner:
    """Runs a packed model; batch-invariant.

    Args:
        model: the weights; they must stay in place.
        name: the id clients use.
        num_threads: threads of a step; None takes what numba and the process may use.
        kv_dtype: type of the pages, float32 or float16.
        activations: ``int8`` rounds the inputs of most 4-bit matrices to 8 bits, ``int16`` all to 16.
    """

    def __init__(
        self,
        model: PackedModel,
        name: str,
        num_threads: int | None = None,
        kv_dtype: str = "float32",
        activations: str = "int16",
    ) -> None:
        shape = model.architecture
        self._kv_dtype = np.dtype(kv_dtype)
        self._narrow_inputs = _NARROW_INPUTS if activations == "int8" else ()
        self._model, self._shape = model, shape
        self._num_threads = num_threads or _usable_threads()
        self._plans: NDArray[Any] = np.zeros(1, PLAN)
        self._plan = self._plans[0]
        self._buffers = Buffers(shape, self._num_threads, self._plan)
        self._fill_plan()
        width = padded(shape.hidden_size)
        self._norms: Float32Array = np.zeros((2 * shape.num_layers + 1, width), np.float32)
        self._norms[:, : shape.hidden_size] = model.vectors["norms"]
        # Copies: a model that was packed in place may bring other layouts, for which numba would compile all anew.
        self._head_norms = np.array(model.vectors.get("head_norms", np.empty((0, 2, shape.head_dim))), np.float32)
        self._frequencies = np.array(model.vectors["frequencies"], np.float32)
        self._windows = np.array(shape.windows, np.int64)
        self._biases = {name: _pad_to_tile(bias) for name, bias in model.vectors.items() if name.endswith(".bias")}
        self._matrices = self._list_matrices()
        where = f"cpu ({self._num_threads} threads)"
        kinds = "/".join(sorted({matrix.kind.name.lower() for matrix in model.matrices.values()}))
        self._info = ModelInfo(
            name=name,
            vocab_size=shape.vocab_size,
            max_model_len=shape.max_model_len,
            kv_bytes_per_token=2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * self._kv_dtype.itemsize,
            is_batch_invariant=True,
            description=f"{shape.model_type}, {shape.num_layers} layers, {kinds}, KV {kv_dtype}, {where}",
        )

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def weight_bytes(self) -> int:
        """Bytes of packed weights that a step reads, whatever its rows: all but an embedding of its own."""
        return sum(matrix.data.nbytes for name, matrix in self._model.matrices.items() if name != "embedding")

    def warm_up(self) -> None:
        """Compile the kernels, or load them from numba's cache, by a step without tokens."""
        none = np.zeros(0, np.int32)
        self._run(Batch(none, none, none, np.zeros(1, np.int32), none, np.zeros((0, 0), np.int32), none))

    def allocate(self, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        shape, plan = self._shape, self._plan
        block_numbers = shape.num_kv_heads * shape.head_dim * block_size
        self._pages = Pages(shape.num_layers, num_blocks, num_host_blocks, block_numbers, self._kv_dtype)
        pool = self._pages.pool
        plan["block_size"], plan["pages"] = block_size, pool.ctypes.data
        plan["item_bytes"] = self._kv_dtype.itemsize
        plan["layer_bytes"], plan["values_offset"], plan["block_bytes"] = pool.strides[:3]

    def forward(self, batch: Batch) -> Float32Array:
        self._pages.move_blocks(batch)
        num_rows, num_wanted = batch.num_tokens, len(batch.wanted)
        if num_rows:
            self._run(batch)
        return self._buffers.logits[:num_wanted, : self._shape.vocab_size]

    def stage_cycles(self) -> dict[str, int]:
        """What the last step spent where: cycles of the time stamp counter in the first thread, by kind of stage."""
        cycles: dict[str, int] = {}
        names = stage_names(self._shape.num_layers)
        for name, spent in zip(names, stage_cycles(self._buffers.counters).tolist(), strict=True):
            cycles[name] = cycles.get(name, 0) + spent
        return cycles

    def _run(self, batch: Batch) -> None:
        buffers, plan = self._buffers, self._plan
        num_rows, num_wanted = batch.num_tokens, len(batch.wanted)
        buffers.fit(num_rows, num_wanted)
        plan["num_rows"], plan["num_wanted"] = num_rows, num_wanted
        self._cut_work(batch)
        buffers.counters.fill(0)
        run_step(
            self._plans, self._matrices, self._norms, self._head_norms, self._windows, self._frequencies,
            _int32(batch.token_ids), _int32(batch.positions), _int32(batch.slots), _int32(batch.wanted),
            _int32(batch.block_tables), buffers.tiles, buffers.pieces, buffers.rotation,
        )  # fmt: skip

    def close(self) -> None:
        del self._pages, self._buffers, self._matrices, self._model

    def _cut_work(self, batch: Batch) -> None:
        shape, buffers = self._shape, self._buffers
        group_size = shape.num_heads // shape.num_kv_heads
        while True:
            num_tiles, num_pieces = cut_work(
                _int32(batch.query_starts), _int32(batch.context_lens), group_size, shape.num_kv_heads,
                self._num_threads, buffers.tiles, buffers.pieces,
            )  # fmt: skip
            if buffers.fit_work(num_tiles, num_pieces):
                break
        if num_pieces > num_tiles:
            buffers.fit_partials(num_pieces * shape.num_kv_heads)
        self._plan["num_tiles"], self._plan["num_pieces"] = num_tiles, num_pieces

    def _fill_plan(self) -> None:
        shape, plan = self._shape, self._plan
        plan["num_threads"], plan["num_layers"] = self._num_threads, shape.num_layers
        plan["hidden_size"], plan["num_hidden_groups"] = shape.hidden_size, padded(shape.hidden_size) // 32
        plan["num_heads"], plan["num_kv_heads"], plan["head_dim"] = shape.num_heads, shape.num_kv_heads, shape.head_dim
        plan["multiply"], plan["attend"] = multiply_entry.address, attend_entry.address
        plan["epsilon"], plan["scaling"] = shape.epsilon, shape.head_dim**-0.5

    def _list_matrices(self) -> NDArray[Any]:
        names = [
            f"layers.{layer}.{part}"
            for layer in range(self._shape.num_layers)
            for part in ("qkv", "out", "gate_up", "down")
        ]
        embedding = "head" if self._shape.is_tied else "embedding"
        return np.array([self._describe(name) for name in (*names, "head", embedding)], MATRIX)

    def _describe(self, name: str) -> tuple[int, ...]:
        matrix = self._model.matrices[name]
        bias = self._biases.get(f"{name}.bias")
        address = 0 if bias is None else bias.ctypes.data
        num_tiles, num_groups = matrix.data.shape[:2]
        form = self._form(name, matrix)
        at_once = fastest_rows_at_once(matrix.kind, form)
        return matrix.kind, form, matrix.data.ctypes.data, address, num_tiles, num_groups, at_once

    def _form(self, name: str, matrix: TiledMatrix) -> Form:
        if matrix.kind is Kind.FLOAT32:
            return Form.FLOATS
        is_narrow = matrix.kind is Kind.INT4 and name.rpartition(".")[2] in self._narrow_inputs
        return Form.NARROW if is_narrow else Form.WIDE


def _usable_threads() -> int:
    from numba import get_num_threads

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(get_num_threads(), cores))


def _pad_to_tile(bias: Float32Array) -> Float32Array:
    return np.ascontiguousarray(np.pad(bias, (0, -len(bias) % 8)))


def _int32(numbers: Int32Array) -> Int32Array:
    return np.ascontiguousarray(numbers, np.int32)
