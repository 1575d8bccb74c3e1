"""Items of the stages around attention: rotate and write, attend, merge; and how the work is cut into them."""

from __future__ import annotations

from numba import njit

from chatserve.models.cpu.attention import MAX_ROWS, SPLIT, merge_split
from chatserve.models.cpu.calls import call_attend
from chatserve.models.cpu.memory import floats_at, shorts_at
from chatserve.models.cpu.rows import normalise_row, store_halves
from chatserve.models.cpu.vector_code import LANES

_ITEMS_PER_THREAD = 4


@njit(nogil=True)
def cut_work(  # type: ignore[no-untyped-def]
    query_starts, context_lens, group_size, num_kv_heads, num_threads, tiles, pieces
):
    """Cut the step's chunks into tiles of queries, and the tiles into pieces of context when there are few.

    Fills tiles int32[., 5] (chunk, first row, end row, position of the first row, first piece) and pieces
    int32[., 3] (tile, first split, end split). Returns how many there are; when the arrays are too small, how many
    there would be.
    """
    per_tile = max(1, MAX_ROWS // group_size)
    num_tiles = 0
    for chunk in range(len(context_lens)):
        num_tiles += (query_starts[chunk + 1] - query_starts[chunk] + per_tile - 1) // per_tile
    is_cut = num_tiles * num_kv_heads < _ITEMS_PER_THREAD * num_threads and num_threads > 1
    tile, piece = 0, 0
    for chunk in range(len(context_lens)):
        start, end = query_starts[chunk], query_starts[chunk + 1]
        for first_row in range(start, end, per_tile):
            end_row = min(first_row + per_tile, end)
            position = context_lens[chunk] - end + first_row
            num_splits = (position + end_row - first_row + SPLIT - 1) // SPLIT
            if tile < len(tiles):
                tiles[tile] = (chunk, first_row, end_row, position, piece)
            step = 1 if is_cut else num_splits
            for split in range(0, num_splits, step):
                if piece < len(pieces):
                    pieces[piece] = (tile, split, split + step)
                piece += 1
            tile += 1
    return tile, piece


@njit(nogil=True)
def rotate_and_write(plan, layer, head_norms, slots, rotation, first_row, end_row, thread):  # type: ignore[no-untyped-def]
    """Normalise q and k head by head if the model does, rotate them, and write k and v into their slots."""
    for row in range(first_row, end_row):
        _rotate_row(plan, layer, head_norms, rotation, row)
        if slots[row] >= 0:
            _write_row(plan, layer, slots[row], row, thread)


@njit(nogil=True)
def _rotate_row(plan, layer, head_norms, rotation, row):  # type: ignore[no-untyped-def]
    head_dim, half = plan.head_dim, plan.head_dim // 2
    for head in range(plan.num_heads + plan.num_kv_heads):
        address = plan.qkv + row * plan.qkv_stride + 4 * head * head_dim
        if len(head_norms):
            norm = head_norms[layer, 1 if head >= plan.num_heads else 0]
            normalise_row(address, norm.ctypes.data, plan.epsilon, head_dim, head_dim, address)
        values = floats_at(address, head_dim)
        for i in range(half):
            low, high, cos, sin = values[i], values[half + i], rotation[row, 0, i], rotation[row, 1, i]
            values[i], values[half + i] = low * cos - high * sin, high * cos + low * sin


@njit(nogil=True)
def _write_row(plan, layer, position, row, thread):  # type: ignore[no-untyped-def]
    head_dim, block_size, num_numbers = plan.head_dim, plan.block_size, plan.num_kv_heads * plan.head_dim
    block, slot = position // block_size, position % block_size
    keys = plan.pages + layer * plan.layer_bytes + block * plan.block_bytes
    values = keys + plan.values_offset
    key = plan.qkv + row * plan.qkv_stride + 4 * plan.num_heads * head_dim
    if plan.item_bytes == 2:
        halves = plan.scratch + thread * plan.scratch_bytes
        store_halves(key, halves, 2 * num_numbers // LANES)
        new, size = shorts_at(halves, 2 * num_numbers), num_numbers * block_size
        _fill_slot(new[:num_numbers], new[num_numbers:], shorts_at(keys, size), shorts_at(values, size), head_dim, slot)
    else:
        new, size = floats_at(key, 2 * num_numbers), num_numbers * block_size
        _fill_slot(new[:num_numbers], new[num_numbers:], floats_at(keys, size), floats_at(values, size), head_dim, slot)


@njit(nogil=True)
def _fill_slot(new_keys, new_values, keys, values, head_dim, slot):  # type: ignore[no-untyped-def]
    """Write the keys and values of one token, all heads, into a block."""
    block_size = len(keys) // len(new_keys)
    for i in range(len(new_keys)):
        head, d = i // head_dim, i % head_dim
        keys[i * block_size + slot] = new_keys[i]
        values[(head * block_size + slot) * head_dim + d] = new_values[i]


@njit(nogil=True)
def attend(plan, windows, layer, block_tables, tiles, pieces, item, thread):  # type: ignore[no-untyped-def]
    """One KV head of one piece. A piece with all splits of its tile is finished here, others by `_merge`."""
    piece, head = item // plan.num_kv_heads, item % plan.num_kv_heads
    tile = tiles[pieces[piece, 0]]
    head_dim, group_size = plan.head_dim, plan.num_heads // plan.num_kv_heads
    num_rows = (tile[2] - tile[1]) * group_size
    queries = plan.scratch + thread * plan.scratch_bytes
    result = queries + 4 * num_rows * head_dim
    other = result + 4 * num_rows * (head_dim + 2)
    scratch = other + 4 * num_rows * (head_dim + 2)
    is_whole = plan.num_pieces == plan.num_tiles
    if not is_whole:
        result = plan.partials + item * plan.partial_bytes
    for i in range(tile[2] - tile[1]):
        source = floats_at(
            plan.qkv + (tile[1] + i) * plan.qkv_stride + 4 * head * group_size * head_dim, group_size * head_dim
        )
        scaled = floats_at(queries + 4 * i * group_size * head_dim, group_size * head_dim)
        for d in range(group_size * head_dim):
            scaled[d] = source[d] * plan.scaling
    keys = plan.pages + layer * plan.layer_bytes + plan.item_bytes * head * head_dim * plan.block_size
    table = block_tables.ctypes.data + tile[0] * block_tables.strides[0]
    first_split = pieces[piece, 1]
    if is_whole and windows[layer] > 0:
        first_split = max(0, tile[3] - windows[layer] + 1) // SPLIT
    for split in range(first_split, pieces[piece, 2]):
        call_attend(plan.attend, (
            queries, num_rows, group_size, tile[3], head_dim, plan.item_bytes, keys, keys + plan.values_offset,
            plan.block_bytes, plan.block_size, table, split, windows[layer], scratch,
            result if split == first_split else other,
        ))  # fmt: skip
        if split > first_split:
            merge_split(result, other, num_rows, head_dim)
    if is_whole:
        _store_mixed(plan, tile, head, result)


@njit(nogil=True)
def merge(plan, tiles, item):  # type: ignore[no-untyped-def]
    """Merge the pieces of one KV head of one tile in their order."""
    index, head = item // plan.num_kv_heads, item % plan.num_kv_heads
    end_piece = tiles[index + 1, 4] if index + 1 < plan.num_tiles else plan.num_pieces
    num_rows = (tiles[index, 2] - tiles[index, 1]) * (plan.num_heads // plan.num_kv_heads)
    result = plan.partials + (tiles[index, 4] * plan.num_kv_heads + head) * plan.partial_bytes
    for piece in range(tiles[index, 4] + 1, end_piece):
        merge_split(
            result, plan.partials + (piece * plan.num_kv_heads + head) * plan.partial_bytes, num_rows, plan.head_dim
        )
    _store_mixed(plan, tiles[index], head, result)


@njit(nogil=True, error_model="numpy")
def _store_mixed(plan, tile, head, result):  # type: ignore[no-untyped-def]
    head_dim, group_size = plan.head_dim, plan.num_heads // plan.num_kv_heads
    num_rows = (tile[2] - tile[1]) * group_size
    sums = floats_at(result, num_rows * (head_dim + 2))
    for row in range(num_rows):
        query, member = tile[1] + row // group_size, head * group_size + row % group_size
        out = floats_at(plan.mixed + query * plan.mixed_stride + 4 * member * head_dim, head_dim)
        total = sums[num_rows * (head_dim + 1) + row]
        for d in range(head_dim):
            out[d] = sums[row * head_dim + d] / total
