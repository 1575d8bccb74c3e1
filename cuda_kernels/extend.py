"""Attention of chunks of tokens over pages that hold their context and themselves, on tensor cores (mma.sync).

A thread block serves 64 rows of one KV head, a row being a query head of a token, so that all query heads of the group
share the K and V it loads. Tiles of K and V arrive in shared memory by asynchronous copies: V while scores are
computed, the next K while values are mixed. Rows of a tile are padded by one chunk, so that eight of them lie in
different banks. Each of the four warps computes 16 rows: scores in float32, softmax in base 2, weights rounded to the
pages' format.
"""

from __future__ import annotations

from typing import Any

from numba import cuda
from numba.cuda import types
from numba.cuda.types import float32, int32, uint32

from cuda_kernels.compiled import CompiledKernel, compile_kernel
from cuda_kernels.element_type import ElementType
from cuda_kernels.intrinsics import (
    INTS,
    WORDS,
    copy_chunk_async,
    exp2,
    finish_copies,
    load_matrices,
    load_transposed,
    shared_address,
)

NUM_THREADS = 128
ROWS_PER_TILE = 64
"""Rows (tokens of a chunk times query heads of a group) that a thread block serves."""
_ALL_LANES = 0xFFFFFFFF
_LOWEST = float32(-1e30)
_LOG2E = float32(1.4426950408889634)
_TWICE_LOG2E = float32(2 * 1.4426950408889634)
_ONE, _TWO = float32(1), float32(2)


def compile_extend(element: ElementType, head_dim: int, *, has_softcap: bool = False) -> CompiledKernel:
    """The kernel for pages, queries and outputs of a 16-bit format; grid (tiles, KV heads).

    Arguments, strides in 32-bit words:
        query, int32 stride of a token, int32 stride of a head; keys, values: pages of the layer,
        [block, KV head, slot, head_dim]; block_tables int32[chunks, table_width], int32 table_width;
        tiles int32[grid, 6]: chunk, its first token in the step, its number of tokens, the tile's first row in the
        chunk (a row is ``token * group_size + query head in the group``), tokens the chunk's last token sees, first
        block when the chunk's blocks are consecutive or -1;
        out [tokens, query heads, head_dim] contiguous; int32 group_size, int32 log2 of the block size,
        float32 scaling, int32 window (0: none), float32 softcap.
    Raises ValueError for float32: tensor cores would round it.
    """
    if element.multiply is None:
        raise ValueError(f"tensor cores do not multiply {element.name}")
    function = _extend_function(element, head_dim, has_softcap)
    signature = types.void(
        WORDS, types.int32, types.int32, WORDS, WORDS, INTS, types.int32, INTS, WORDS, types.int32, types.int32,
        types.float32, types.int32, types.float32,
    )  # fmt: skip
    cap = " softcap" if has_softcap else ""
    return compile_kernel(f"extend {element.name} {head_dim}{cap}", function, signature, NUM_THREADS)


def _extend_function(element: ElementType, head_dim: int, has_softcap: bool) -> Any:
    pack, multiply = element.pack, element.multiply
    tile_tokens = 64 if head_dim <= 128 else 32
    num_chunks = head_dim // 8
    pitch = 16 * (num_chunks + 1)
    tile_words = tile_tokens * pitch // 4
    num_steps, num_columns = head_dim // 16, head_dim // 8
    score_pairs, score_columns = tile_tokens // 16, tile_tokens // 8
    num_copies = tile_tokens * num_chunks
    words_per_head = head_dim // 2
    keeps_query = head_dim <= 128  # else its registers are needed for the sums; the cache holds the few rows
    kept_steps = num_steps if keeps_query else 1

    @cuda.jit(device=True, inline="always")
    def start_tile(
        target: Any, pages: Any, block_tables: Any, table_start: Any, run: Any, block_shift: Any, block_chunks: Any,
        head_start: Any, first: Any, end: Any,
    ) -> None:  # fmt: skip
        """Start copying K or V of tokens `first` and on; zeros from `end` on, so that no stale number is mixed in."""
        index = int32(cuda.threadIdx.x)
        last, slot_mask = int32(end - 1), int32((1 << block_shift) - 1)
        while index < num_copies:
            row = int32(index // num_chunks)
            chunk = int32(index - row * num_chunks)
            position = int32(first + row)
            logical = min(position, last) >> block_shift
            block = int32(run + logical) if run >= 0 else block_tables[table_start + logical]
            at = int32(
                int32(block * block_chunks) + int32(int32(position & slot_mask) * num_chunks) + head_start + chunk
            )
            copy_chunk_async(uint32(target + row * pitch + chunk * 16), pages, at, position < end)
            index = int32(index + NUM_THREADS)

    def extend(
        query: Any, token_stride: Any, head_stride: Any, keys: Any, values: Any, block_tables: Any, table_width: Any,
        tiles: Any, out: Any, group_size: Any, block_shift: Any, scaling: Any, window: Any, softcap: Any,
    ) -> None:  # fmt: skip
        tile, kv_head, num_kv_heads = int32(cuda.blockIdx.x), int32(cuda.blockIdx.y), int32(cuda.gridDim.y)
        chunk_row, first_token, num_tokens = tiles[6 * tile], tiles[6 * tile + 1], tiles[6 * tile + 2]
        first_row, context, run = tiles[6 * tile + 3], tiles[6 * tile + 4], tiles[6 * tile + 5]
        thread = int32(cuda.threadIdx.x)
        warp, lane = thread >> 5, thread & 31
        quad, place = lane >> 2, lane & 3
        table_start = int32(chunk_row * table_width)
        head_start = int32(int32(kv_head << block_shift) * num_chunks)
        block_chunks = int32(int32(num_kv_heads << block_shift) * num_chunks)

        # What the tile sees: positions [begin, end), of which `quad`'s two rows see a part each.
        past = int32(context - num_tokens)
        last_row = int32(min(first_row + ROWS_PER_TILE, num_tokens * group_size) - 1)
        first_position = int32(past + first_row // group_size)
        end = int32(past + last_row // group_size + 1)
        begin = max(int32(0), int32(first_position - window + 1)) if window > 0 else int32(0)
        begin = int32(begin // tile_tokens * tile_tokens)
        upper, lower = int32(first_row + warp * 16 + quad), int32(first_row + warp * 16 + quad + 8)
        upper_token, lower_token = min(upper, last_row) // group_size, min(lower, last_row) // group_size
        upper_head, lower_head = min(upper, last_row) % group_size, min(lower, last_row) % group_size
        upper_end, lower_end = int32(past + upper_token + 1), int32(past + lower_token + 1)
        upper_begin = int32(upper_end - window) if window > 0 else int32(0)
        lower_begin = int32(lower_end - window) if window > 0 else int32(0)

        left = cuda.local.array((kept_steps, 4), uint32)
        scores = cuda.local.array((score_columns, 4), float32)
        mixed = cuda.local.array((num_columns, 4), float32)
        upper_word = int32(
            (first_token + upper_token) * token_stride + (kv_head * group_size + upper_head) * head_stride
        )
        lower_word = int32(
            (first_token + lower_token) * token_stride + (kv_head * group_size + lower_head) * head_stride
        )
        for step in range(kept_steps):
            left[step, 0] = query[upper_word + step * 8 + place]
            left[step, 1] = query[lower_word + step * 8 + place]
            left[step, 2] = query[upper_word + step * 8 + place + 4]
            left[step, 3] = query[lower_word + step * 8 + place + 4]
        for column in range(num_columns):
            for i in range(4):
                mixed[column, i] = float32(0)
        upper_largest, lower_largest, upper_total, lower_total = _LOWEST, _LOWEST, float32(0), float32(0)

        key_tile = shared_address(cuda.shared.array(tile_words, uint32, alignment=16))
        value_tile = shared_address(cuda.shared.array(tile_words, uint32, alignment=16))
        # Lane i gives ldmatrix the address of row i % 8 of matrix i // 8; the four cover 16 tokens x 16 numbers.
        key_row = uint32(key_tile + ((lane & 7) + ((lane >> 4) << 3)) * pitch + ((lane >> 3) & 1) * 16)
        value_row = uint32(value_tile + (lane & 15) * pitch + (lane >> 4) * 16)

        start_tile(key_tile, keys, block_tables, table_start, run, block_shift, block_chunks, head_start, begin, end)
        for first in range(begin, end, tile_tokens):
            finish_copies()
            cuda.syncthreads()  # K is there, and nobody needs the last V
            start_tile(
                value_tile, values, block_tables, table_start, run, block_shift, block_chunks, head_start, first, end
            )

            for column in range(score_columns):
                for i in range(4):
                    scores[column, i] = float32(0)
            for step in range(num_steps):
                if keeps_query:
                    q = (left[step, 0], left[step, 1], left[step, 2], left[step, 3])
                else:
                    upper_at, lower_at = upper_word + step * 8 + place, lower_word + step * 8 + place
                    q = (query[upper_at], query[lower_at], query[upper_at + 4], query[lower_at + 4])
                for pair in range(score_pairs):
                    k = load_matrices(uint32(key_row + pair * 16 * pitch + step * 32))
                    for half in range(2):
                        n = 2 * pair + half
                        sums = multiply(
                            q, k[2 * half], k[2 * half + 1], (scores[n, 0], scores[n, 1], scores[n, 2], scores[n, 3])
                        )
                        for i in range(4):
                            scores[n, i] = sums[i]

            new_upper, new_lower = upper_largest, lower_largest
            for column in range(score_columns):
                for i in range(4):
                    score = scores[column, i]
                    if has_softcap:
                        doubled = exp2(float32(score * scaling / softcap * _TWICE_LOG2E))
                        score = float32(softcap * float32(_ONE - float32(_TWO / float32(doubled + _ONE))) * _LOG2E)
                    else:
                        score = float32(score * float32(scaling * _LOG2E))
                    position = int32(first + column * 8 + place * 2 + (i & 1))
                    if i < 2:
                        score = score if position < upper_end and position >= upper_begin else _LOWEST
                        new_upper = max(new_upper, score)
                    else:
                        score = score if position < lower_end and position >= lower_begin else _LOWEST
                        new_lower = max(new_lower, score)
                    scores[column, i] = score
            for distance in (1, 2):
                new_upper = max(new_upper, cuda.shfl_xor_sync(_ALL_LANES, new_upper, distance))
                new_lower = max(new_lower, cuda.shfl_xor_sync(_ALL_LANES, new_lower, distance))
            upper_shrink = exp2(float32(upper_largest - new_upper))
            lower_shrink = exp2(float32(lower_largest - new_lower))
            upper_largest, lower_largest = new_upper, new_lower
            upper_total *= upper_shrink
            lower_total *= lower_shrink
            for column in range(num_columns):
                mixed[column, 0] *= upper_shrink
                mixed[column, 1] *= upper_shrink
                mixed[column, 2] *= lower_shrink
                mixed[column, 3] *= lower_shrink
            for column in range(score_columns):
                for i in range(4):
                    # A row that sees nothing of the tile yet has only lowest scores; their weights are zero, not one.
                    largest = upper_largest if i < 2 else lower_largest
                    score = scores[column, i]
                    weight = exp2(float32(score - largest)) if score > _LOWEST else float32(0)
                    scores[column, i] = weight
                    if i < 2:
                        upper_total += weight
                    else:
                        lower_total += weight

            finish_copies()
            cuda.syncthreads()  # V is there, and nobody needs this K
            if first + tile_tokens < end:
                start_tile(
                    key_tile, keys, block_tables, table_start, run, block_shift, block_chunks, head_start,
                    int32(first + tile_tokens), end,
                )  # fmt: skip
            for pair in range(score_pairs):
                weights = (
                    pack(scores[2 * pair, 0], scores[2 * pair, 1]),
                    pack(scores[2 * pair, 2], scores[2 * pair, 3]),
                    pack(scores[2 * pair + 1, 0], scores[2 * pair + 1, 1]),
                    pack(scores[2 * pair + 1, 2], scores[2 * pair + 1, 3]),
                )
                for step in range(num_steps):
                    v = load_transposed(uint32(value_row + pair * 16 * pitch + step * 32))
                    for half in range(2):
                        n = 2 * step + half
                        sums = multiply(
                            weights, v[2 * half], v[2 * half + 1], (mixed[n, 0], mixed[n, 1], mixed[n, 2], mixed[n, 3])
                        )
                        for i in range(4):
                            mixed[n, i] = sums[i]

        for distance in (1, 2):
            upper_total += cuda.shfl_xor_sync(_ALL_LANES, upper_total, distance)
            lower_total += cuda.shfl_xor_sync(_ALL_LANES, lower_total, distance)
        upper_inverse, lower_inverse = float32(_ONE / upper_total), float32(_ONE / lower_total)
        num_heads = int32(num_kv_heads * group_size)
        upper_out = (
            (first_token + upper_token) * num_heads + kv_head * group_size + upper_head
        ) * words_per_head + place
        lower_out = (
            (first_token + lower_token) * num_heads + kv_head * group_size + lower_head
        ) * words_per_head + place
        for column in range(num_columns):
            if upper <= last_row:
                out[upper_out + column * 4] = pack(
                    float32(mixed[column, 0] * upper_inverse), float32(mixed[column, 1] * upper_inverse)
                )
            if lower <= last_row:
                out[lower_out + column * 4] = pack(
                    float32(mixed[column, 2] * lower_inverse), float32(mixed[column, 3] * lower_inverse)
                )

    return extend
