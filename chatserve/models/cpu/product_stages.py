"""Items of the stages that multiply: a block of a matrix's tiles times a block of rows."""

from __future__ import annotations

from numba import njit

from chatserve.models.cpu.calls import call_multiply
from chatserve.models.cpu.memory import floats_at
from chatserve.models.cpu.products import BLOCK_GROUP_BYTES, BLOCK_ROWS, Form
from chatserve.models.cpu.rows import normalise_row, store_row, swiglu
from chatserve.models.cpu.tiles import GROUP, GROUP_BYTES, TILE_ROWS, Kind

PRIVATE_ROWS = 2
"""With so few rows every thread prepares a matrix's input for itself, which is quicker than waiting for the others."""

ROW_BLOCK = 48
"""Rows of an item, in whole blocks: their 8-bit activations stay in the first-level cache."""

_TILE_BLOCK, _MAX_TILES, _ITEMS_PER_THREAD = 8, 64, 4
_TILE_BYTES = 4 * TILE_ROWS
_BLOCK_GROUP_BYTES = tuple(BLOCK_GROUP_BYTES[form] for form in Form)
_GROUP_BYTES = tuple(GROUP_BYTES[kind] for kind in Kind)


@njit(nogil=True)
def _tiles_per_item(num_tiles, num_rows, num_threads):  # type: ignore[no-untyped-def]
    if num_rows > ROW_BLOCK:
        return _TILE_BLOCK
    return min(_MAX_TILES, max(1, num_tiles // (_ITEMS_PER_THREAD * num_threads)))


@njit(nogil=True)
def num_product_items(plan, num_tiles, num_rows):  # type: ignore[no-untyped-def]
    """Items of a product with `num_tiles` tiles, or pairs of tiles."""
    size = _tiles_per_item(num_tiles, num_rows, plan.num_threads)
    return (num_tiles + size - 1) // size * ((num_rows + ROW_BLOCK - 1) // ROW_BLOCK)


@njit(nogil=True)
def _block(item, num_tiles, num_rows, num_threads):  # type: ignore[no-untyped-def]
    """First row, number of rows, first tile and end tile of an item."""
    size = _tiles_per_item(num_tiles, num_rows, num_threads)
    num_blocks = (num_tiles + size - 1) // size
    first_row, first_tile = item // num_blocks * ROW_BLOCK, item % num_blocks * size
    return first_row, min(ROW_BLOCK, num_rows - first_row), first_tile, min(first_tile + size, num_tiles)


@njit(nogil=True)
def _buffer(plan, thread):  # type: ignore[no-untyped-def]
    return thread if plan.num_rows <= PRIVATE_ROWS else 0


@njit(nogil=True)
def prepare_row(plan, matrix, row, source, norm_weights, thread):  # type: ignore[no-untyped-def]
    """Bring row `row` of a matrix's input into the form it wants, normalised before unless `norm_weights` is 0."""
    if norm_weights:
        scratch = plan.scratch + thread * plan.scratch_bytes
        normalise_row(source, norm_weights, plan.epsilon, plan.hidden_size, matrix.num_groups * GROUP, scratch)
        source = scratch
    block = _prepared(plan, matrix, row, thread)
    store_row(matrix.form, source, block, row % BLOCK_ROWS, matrix.num_groups)


@njit(nogil=True)
def _prepared(plan, matrix, row, thread):  # type: ignore[no-untyped-def]
    """Address of the block with row `row` of a matrix's input."""
    buffer = plan.prepared + _buffer(plan, thread) * plan.prepared_bytes
    return buffer + row // BLOCK_ROWS * matrix.num_groups * _BLOCK_GROUP_BYTES[matrix.form]


@njit(nogil=True)
def multiply(plan, matrix, item, thread, num_rows, out, out_stride, adds):  # type: ignore[no-untyped-def]
    """``out = x @ matrix.T + bias``; `adds` to what the output holds (the residual) instead of replacing it."""
    first_row, count, first_tile, end_tile = _block(item, matrix.num_tiles, num_rows, plan.num_threads)
    x = _prepared(plan, matrix, first_row, thread)
    for tile in range(first_tile, end_tile):
        weights = matrix.weights + tile * matrix.num_groups * _GROUP_BYTES[matrix.kind]
        target, bias = out + first_row * out_stride + _TILE_BYTES * tile, matrix.bias + _TILE_BYTES * tile
        if adds and matrix.bias:
            for row in range(count):
                floats_at(target + row * out_stride, TILE_ROWS)[:] += floats_at(bias, TILE_ROWS)
        initial, initial_stride = target if adds else bias if matrix.bias else plan.zeros, out_stride if adds else 0
        call_multiply(plan.multiply, (
            matrix.kind, matrix.form, weights, x,
            initial, initial_stride, target, out_stride, matrix.num_groups, count,
            matrix.at_once,
        ))  # fmt: skip


@njit(nogil=True)
def multiply_gate_up(plan, matrix, item, thread):  # type: ignore[no-untyped-def]
    """Like `multiply`, for tiles that alternate between gate and up; what is stored is ``silu(gate) * up``."""
    first_row, count, first_pair, end_pair = _block(item, matrix.num_tiles // 2, plan.num_rows, plan.num_threads)
    x = _prepared(plan, matrix, first_row, thread)
    tile_bytes = matrix.num_groups * _GROUP_BYTES[matrix.kind]
    results = plan.scratch + thread * plan.scratch_bytes
    for pair in range(first_pair, end_pair):
        for side in range(2):
            call_multiply(plan.multiply, (
                matrix.kind, matrix.form, matrix.weights + (2 * pair + side) * tile_bytes,
                x, plan.zeros, 0,
                results + side * ROW_BLOCK * _TILE_BYTES, _TILE_BYTES, matrix.num_groups, count,
            matrix.at_once,
            ))  # fmt: skip
        for row in range(count):
            gates = results + row * _TILE_BYTES
            out = plan.inner + (first_row + row) * plan.inner_stride + _TILE_BYTES * pair
            swiglu(gates, gates + ROW_BLOCK * _TILE_BYTES, out)
