"""A whole step of the model: one parallel region, in which all threads walk through the stages of all layers.

See `synchronisation` for how they share the items of a stage, `plan` for what they are told.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from chatserve.models.cpu.attention_stages import attend, merge, rotate_and_write
from chatserve.models.cpu.attention_stages import cut_work as _cut
from chatserve.models.cpu.embedding import read_row
from chatserve.models.cpu.plan import DOWN, GATE_UP, OUT, PER_LAYER, QKV
from chatserve.models.cpu.product_stages import (
    PRIVATE_ROWS,
    multiply,
    multiply_gate_up,
    num_product_items,
    prepare_row,
)
from chatserve.models.cpu.sources import source_digest
from chatserve.models.cpu.synchronisation import add_one, stamp, wait_for

COUNTER_BYTES = 128
"""Bytes of a stage's counters: tickets in the first cache line, finished items in the second.

Behind the tickets stands when the first thread was done with the stage, in cycles of the processor's time stamp
counter, and in the first stage of all also when it began.
"""

(
    _EMBED, _NORMALISE_INPUT, _MULTIPLY_QKV, _ROTATE, _ATTEND, _MERGE, _PREPARE_MIXED, _MULTIPLY_OUT,
    _NORMALISE_MIXED, _MULTIPLY_GATE_UP, _PREPARE_INNER, _MULTIPLY_DOWN, _NORMALISE_LAST, _MULTIPLY_HEAD,
) = range(14)  # fmt: skip
_STAGES_PER_LAYER = 11
STAGES = (
    "embed", "normalise input", "qkv", "rotate and write", "attend", "merge", "prepare mixed", "out",
    "normalise mixed", "gate and up", "prepare inner", "down", "normalise last", "head",
)  # fmt: skip
"""Names of the stages, by number."""
_PRODUCTS = (_MULTIPLY_QKV, _MULTIPLY_OUT, _MULTIPLY_GATE_UP, _MULTIPLY_DOWN, _MULTIPLY_HEAD)
_PREPARATIONS = (_NORMALISE_INPUT, _PREPARE_MIXED, _NORMALISE_MIXED, _PREPARE_INNER, _NORMALISE_LAST)
"""The stage that follows a preparation is the product it prepares."""
_ROWS_PER_ITEM = 4


def num_stages(num_layers: int) -> int:
    return 1 + num_layers * _STAGES_PER_LAYER + 2


def stage_cycles(counters: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cycles that the first thread spent in each of the step's stages, waiting included, int64[num_stages].

    All are 0 on processors whose counter cannot be read. A stage without items took none.
    """
    lines = counters.reshape(-1, COUNTER_BYTES // 8)
    ends = np.maximum.accumulate(np.concatenate([lines[:1, 2], lines[:, 1]]))
    return np.diff(ends)


def stage_names(num_layers: int) -> list[str]:
    """What each of the step's stages is called."""
    return [STAGES[_locate.py_func(index, num_layers)[0]] for index in range(num_stages(num_layers))]


@njit(nogil=True)
def _locate(index, num_layers):  # type: ignore[no-untyped-def]
    """Stage and layer of the step's `index`-th stage."""
    first_of_last = 1 + num_layers * _STAGES_PER_LAYER
    if index >= first_of_last:
        return _NORMALISE_LAST + index - first_of_last, num_layers
    if index == 0:
        return _EMBED, 0
    return 1 + (index - 1) % _STAGES_PER_LAYER, (index - 1) // _STAGES_PER_LAYER


@njit(nogil=True)
def _matrix_of(stage, layer, matrices):  # type: ignore[no-untyped-def]
    """The matrix that a product multiplies with; for the head, `layer` is behind the last one."""
    first = layer * PER_LAYER
    if stage == _MULTIPLY_OUT:
        return matrices[first + OUT]
    if stage == _MULTIPLY_GATE_UP:
        return matrices[first + GATE_UP]
    if stage == _MULTIPLY_DOWN:
        return matrices[first + DOWN]
    return matrices[first + QKV]


@njit(nogil=True)
def _num_items(stage, plan, matrices, layer):  # type: ignore[no-untyped-def]
    is_last = stage in (_NORMALISE_LAST, _MULTIPLY_HEAD)
    num_rows = plan.num_wanted if is_last else plan.num_rows
    if stage in _PRODUCTS:
        num_tiles = _matrix_of(stage, layer, matrices).num_tiles
        return num_product_items(plan, num_tiles // 2 if stage == _MULTIPLY_GATE_UP else num_tiles, num_rows)
    if stage == _ATTEND:
        return plan.num_pieces * plan.num_kv_heads
    if stage == _MERGE:
        return plan.num_tiles * plan.num_kv_heads if plan.num_pieces > plan.num_tiles else 0
    if stage in _PREPARATIONS and plan.num_rows <= PRIVATE_ROWS:
        return 0
    return (num_rows + _ROWS_PER_ITEM - 1) // _ROWS_PER_ITEM


@njit(nogil=True)
def _prepare(stage, plan, matrices, norms, wanted, layer, thread, first, end):  # type: ignore[no-untyped-def]
    """Prepare the rows `first` to `end` of the input of the product `stage`."""
    matrix = _matrix_of(stage, layer, matrices)
    for row in range(first, end):
        if stage == _MULTIPLY_OUT:
            prepare_row(plan, matrix, row, plan.mixed + row * plan.mixed_stride, 0, thread)
        elif stage == _MULTIPLY_DOWN:
            prepare_row(plan, matrix, row, plan.inner + row * plan.inner_stride, 0, thread)
        else:
            source = plan.hidden + (wanted[row] if stage == _MULTIPLY_HEAD else row) * plan.hidden_stride
            norm = norms[2 * layer + (1 if stage == _MULTIPLY_GATE_UP else 0)]
            prepare_row(plan, matrix, row, source, norm.ctypes.data, thread)


@njit(nogil=True)
def _multiply_item(stage, plan, matrices, layer, item, thread):  # type: ignore[no-untyped-def]
    matrix = _matrix_of(stage, layer, matrices)
    if stage == _MULTIPLY_GATE_UP:
        multiply_gate_up(plan, matrix, item, thread)
    elif stage == _MULTIPLY_QKV:
        multiply(plan, matrix, item, thread, plan.num_rows, plan.qkv, plan.qkv_stride, False)
    elif stage == _MULTIPLY_HEAD:
        multiply(plan, matrix, item, thread, plan.num_wanted, plan.logits, plan.logits_stride, False)
    else:
        multiply(plan, matrix, item, thread, plan.num_rows, plan.hidden, plan.hidden_stride, True)


@njit(nogil=True)
def _embed(  # type: ignore[no-untyped-def]
    plan, matrices, frequencies, token_ids, positions, rotation, first_row, end_row
):
    """Start rows with their tokens' embeddings, and work out by which angles their heads are rotated."""
    matrix = matrices[PER_LAYER * plan.num_layers + 1]
    for row in range(first_row, end_row):
        read_row(matrix.kind, matrix.weights, token_ids[row], matrix.num_groups, plan.hidden + row * plan.hidden_stride)
        for i in range(len(frequencies)):
            angle = np.float64(np.float32(positions[row]) * frequencies[i])  # in float32, as transformers does
            rotation[row, 0, i], rotation[row, 1, i] = math.cos(angle), math.sin(angle)


@njit(nogil=True)
def _stamp_first(thread, address):  # type: ignore[no-untyped-def]
    if thread == 0:
        stamp(address)


@njit(nogil=True)
def _work(  # type: ignore[no-untyped-def]
    thread, plan, matrices, norms, head_norms, windows, frequencies,
    token_ids, positions, slots, wanted, block_tables, tiles, pieces, rotation,
):  # fmt: skip
    """What one thread does in a step."""
    previous_counter, previous_items = np.int64(0), 0
    _stamp_first(thread, plan.counters + 16)
    for index in range(1 + plan.num_layers * _STAGES_PER_LAYER + 2):
        stage, layer = _locate(index, plan.num_layers)
        num_items = _num_items(stage, plan, matrices, layer)
        if num_items == 0:
            continue
        if previous_items:
            wait_for(previous_counter + COUNTER_BYTES // 2, previous_items)
        counter = plan.counters + index * COUNTER_BYTES
        num_rows = plan.num_wanted if stage in (_NORMALISE_LAST, _MULTIPLY_HEAD) else plan.num_rows
        item = add_one(counter)
        if item < num_items and stage in _PRODUCTS and plan.num_rows <= PRIVATE_ROWS:
            _prepare(stage, plan, matrices, norms, wanted, layer, thread, 0, num_rows)
        while item < num_items:
            first_row, end_row = item * _ROWS_PER_ITEM, min((item + 1) * _ROWS_PER_ITEM, num_rows)
            if stage in _PRODUCTS:
                _multiply_item(stage, plan, matrices, layer, item, thread)
            elif stage in _PREPARATIONS:
                _prepare(stage + 1, plan, matrices, norms, wanted, layer, thread, first_row, end_row)
            elif stage == _ATTEND:
                attend(plan, windows, layer, block_tables, tiles, pieces, item, thread)
            elif stage == _MERGE:
                merge(plan, tiles, item)
            elif stage == _ROTATE:
                rotate_and_write(plan, layer, head_norms, slots, rotation, first_row, end_row, thread)
            else:
                _embed(plan, matrices, frequencies, token_ids, positions, rotation, first_row, end_row)
            add_one(counter + COUNTER_BYTES // 2)
            item = add_one(counter)
        _stamp_first(thread, counter + 8)
        previous_counter, previous_items = counter, num_items


def _make_kernels(sources: int) -> tuple[Any, Any]:
    """The two functions called from Python; see `entry_points` for `sources`."""

    @njit(cache=True, nogil=True)
    def cut_work(  # type: ignore[no-untyped-def]
        query_starts, context_lens, group_size, num_kv_heads, num_threads, tiles, pieces
    ):
        threads = num_threads if sources else 1
        return _cut(query_starts, context_lens, group_size, num_kv_heads, threads, tiles, pieces)

    @njit(cache=True, nogil=True, parallel=True)
    def run_step(  # type: ignore[no-untyped-def]
        plans, matrices, norms, head_norms, windows, frequencies,
        token_ids, positions, slots, wanted, block_tables, tiles, pieces, rotation,
    ):  # fmt: skip
        num_threads = plans[0].num_threads if sources else 1
        for thread in prange(num_threads):
            _work(
                thread, plans[0], matrices, norms, head_norms, windows, frequencies,
                token_ids, positions, slots, wanted, block_tables, tiles, pieces, rotation,
            )  # fmt: skip

    return cut_work, run_step


cut_work, run_step = _make_kernels(source_digest())
