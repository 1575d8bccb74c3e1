"""Attention of single tokens over pages: block read, online softmax and split over the context in one kernel.

A thread block serves one token, one KV head (or a part of its query heads) and one split of the context. Its warps take
turns over the context; in a warp, `lanes` lanes share a cached token, each holding one or two chunks of the head's row,
and every K and V loaded is used by all query heads of the block. Scores and softmax are in base 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba import cuda
from numba.cuda import types
from numba.cuda.types import float32, int32, uint32

from cuda_kernels.compiled import CompiledKernel, compile_kernel
from cuda_kernels.element_type import ElementType
from cuda_kernels.intrinsics import FLOATS, INTS, WORDS, exp2, load_chunk_if

NUM_WARPS = 4
NUM_THREADS = 32 * NUM_WARPS
MAX_HEADS = 8
"""Query heads that one thread block serves; larger groups take several."""
_ALL_LANES = 0xFFFFFFFF
_LOWEST = float32(-1e30)
_LOG2E = float32(1.4426950408889634)
_TWICE_LOG2E = float32(2 * 1.4426950408889634)
_ONE, _TWO = float32(1), float32(2)


@dataclass(frozen=True, slots=True)
class DecodeVariant:
    """What is fixed when the kernel is compiled.

    Attributes:
        element: format of pages, queries and outputs.
        head_dim: numbers in a head's row; a multiple of 16, at most 256.
        num_heads: query heads served by a thread block, 1 to `MAX_HEADS`.
        has_softcap: whether scores s become ``softcap * tanh(s / softcap)``.
    """

    element: ElementType
    head_dim: int
    num_heads: int
    has_softcap: bool = False

    @property
    def num_chunks(self) -> int:
        """Chunks in a head's row."""
        return self.head_dim // self.element.per_chunk

    @property
    def lanes(self) -> int:
        """Lanes that share a token."""
        return min(32, 1 << (self.num_chunks - 1).bit_length())

    @property
    def chunks_per_lane(self) -> int:
        return -(-self.num_chunks // self.lanes)

    @property
    def unrolled(self) -> int:
        """Tokens that a lane has in flight."""
        return 4 if self.num_heads * self.chunks_per_lane * self.element.per_chunk <= 32 else 2


def heads_per_block(group_size: int) -> tuple[int, int]:
    """How a group of query heads is cut: (thread blocks, heads of each); the last may have heads to spare."""
    num_parts = -(-group_size // MAX_HEADS)
    return num_parts, -(-group_size // num_parts)


def compile_decode(variant: DecodeVariant) -> CompiledKernel:
    """The kernel for `variant`; grid (rows, KV heads * parts, splits).

    Arguments, strides in 32-bit words:
        query, int32 stride of a token, int32 stride of a head; keys, values: pages of the layer,
        [block, KV head, slot, head_dim]; block_tables int32[chunks, table_width], int32 table_width;
        rows int32[grid, 4]: token, chunk, visible tokens (0: a padded row, its output is 0), first block when the
        chunk's blocks are consecutive or -1; out [tokens, query heads, head_dim] contiguous;
        partial float32[rows, query heads, splits, head_dim], statistics float32[rows, query heads, splits, 2]: used
        when there are several splits, for `compile_combine`;
        int32 group_size, int32 log2 of the block size, float32 scaling, int32 window (0: none), float32 softcap.
    """
    function = _decode_function(variant)
    signature = types.void(
        WORDS, types.int32, types.int32, WORDS, WORDS, INTS, types.int32, INTS, WORDS, FLOATS, FLOATS,
        types.int32, types.int32, types.float32, types.int32, types.float32,
    )  # fmt: skip
    cap = " softcap" if variant.has_softcap else ""
    name = f"decode {variant.element.name} {variant.head_dim} x {variant.num_heads}{cap}"
    return compile_kernel(name, function, signature, NUM_THREADS)


def _decode_function(variant: DecodeVariant) -> Any:
    unpack, pack = variant.element.unpack, variant.element.pack
    per_chunk, per_word = variant.element.per_chunk, variant.element.per_word
    head_dim, num_heads, num_chunks = variant.head_dim, variant.num_heads, variant.num_chunks
    lanes, chunks_per_lane, unrolled = variant.lanes, variant.chunks_per_lane, variant.unrolled
    numbers = chunks_per_lane * per_chunk
    has_softcap = variant.has_softcap
    lane_shift = lanes.bit_length() - 1
    tokens_per_pass = 32 // lanes
    tokens_per_warp = tokens_per_pass * unrolled
    tokens_per_step = NUM_WARPS * tokens_per_warp
    words_per_head = head_dim // per_word
    num_words = num_heads * words_per_head
    chunk_words = chunks_per_lane * 4

    def decode(
        query: Any, token_stride: Any, head_stride: Any, keys: Any, values: Any, block_tables: Any, table_width: Any,
        rows: Any, out: Any, partial: Any, statistics: Any, group_size: Any, block_shift: Any, scaling: Any,
        window: Any, softcap: Any,
    ) -> None:  # fmt: skip
        row = int32(cuda.blockIdx.x)
        num_parts = int32((group_size + num_heads - 1) // num_heads)
        kv_head = int32(cuda.blockIdx.y) // num_parts
        num_kv_heads = int32(cuda.gridDim.y) // num_parts
        first_in_group = int32((int32(cuda.blockIdx.y) - kv_head * num_parts) * num_heads)
        num_query_heads = int32(num_kv_heads * group_size)
        split, num_splits = int32(cuda.blockIdx.z), int32(cuda.gridDim.z)
        thread = int32(cuda.threadIdx.x)
        warp, lane = thread >> 5, thread & 31
        place, first_chunk = lane >> lane_shift, lane & (lanes - 1)

        token, chunk_row = rows[4 * row], rows[4 * row + 1]
        context, run = rows[4 * row + 2], rows[4 * row + 3]
        begin = max(int32(0), int32(context - window)) if window > 0 else int32(0)
        share = int32((context - begin + num_splits - 1) // num_splits)
        share = int32((share + tokens_per_step - 1) // tokens_per_step * tokens_per_step)
        start = int32(begin + split * share)
        end = min(context, int32(start + share))
        last = int32(end - 1)
        table_start = int32(chunk_row * table_width)
        slot_mask = int32((1 << block_shift) - 1)
        head_start = int32(int32(kv_head << block_shift) * num_chunks)
        block_chunks = int32(int32(num_kv_heads << block_shift) * num_chunks)

        q = cuda.local.array((num_heads, numbers), float32)
        mixed = cuda.local.array((num_heads, numbers), float32)
        largest = cuda.local.array(num_heads, float32)
        total = cuda.local.array(num_heads, float32)
        k_words = cuda.local.array((unrolled, chunk_words), uint32)
        v_words = cuda.local.array((unrolled, chunk_words), uint32)
        scores = cuda.local.array((unrolled, num_heads), float32)
        factor = scaling if has_softcap else float32(scaling * _LOG2E)

        for head in range(num_heads):
            largest[head] = _LOWEST
            total[head] = float32(0)
            in_group = min(int32(first_in_group + head), int32(group_size - 1))
            word = int32(token * token_stride + (kv_head * group_size + in_group) * head_stride)
            for part in range(chunks_per_lane):
                chunk = int32(first_chunk + part * lanes)
                loaded = unpack(load_chunk_if(query, int32((word >> 2) + chunk), chunk < num_chunks and start < end))
                for i in range(per_chunk):
                    q[head, part * per_chunk + i] = float32(loaded[i] * factor)
                    mixed[head, part * per_chunk + i] = float32(0)

        for base in range(start + warp * tokens_per_warp, end, tokens_per_step):
            for step in range(unrolled):
                position = int32(base + step * tokens_per_pass + place)
                is_visible = position < end
                logical = min(position, last) >> block_shift
                block = int32(run + logical) if run >= 0 else block_tables[table_start + logical]
                row_chunk = int32(int32(block * block_chunks) + int32(int32(position & slot_mask) * num_chunks))
                for part in range(chunks_per_lane):
                    chunk = int32(first_chunk + part * lanes)
                    at, is_wanted = int32(row_chunk + head_start + chunk), is_visible and chunk < num_chunks
                    k_loaded, v_loaded = load_chunk_if(keys, at, is_wanted), load_chunk_if(values, at, is_wanted)
                    for i in range(4):
                        k_words[step, part * 4 + i] = k_loaded[i]
                        v_words[step, part * 4 + i] = v_loaded[i]

            for step in range(unrolled):
                is_visible = base + step * tokens_per_pass + place < end
                for head in range(num_heads):
                    score = float32(0)
                    for part in range(chunks_per_lane):
                        w = part * 4
                        k = unpack((k_words[step, w], k_words[step, w + 1], k_words[step, w + 2], k_words[step, w + 3]))
                        for i in range(per_chunk):
                            score += q[head, part * per_chunk + i] * k[i]
                    distance = lanes >> 1
                    while distance > 0:
                        score += cuda.shfl_xor_sync(_ALL_LANES, score, distance)
                        distance >>= 1
                    if has_softcap:
                        doubled = exp2(float32(score / softcap * _TWICE_LOG2E))
                        score = float32(softcap * float32(_ONE - float32(_TWO / float32(doubled + _ONE))) * _LOG2E)
                    scores[step, head] = score if is_visible else _LOWEST

            for head in range(num_heads):
                new_largest = largest[head]
                for step in range(unrolled):
                    new_largest = max(new_largest, scores[step, head])
                shrink = exp2(float32(largest[head] - new_largest))
                largest[head] = new_largest
                total[head] *= shrink
                for i in range(numbers):
                    mixed[head, i] *= shrink

            for step in range(unrolled):
                is_visible = base + step * tokens_per_pass + place < end
                for head in range(num_heads):
                    weight = exp2(float32(scores[step, head] - largest[head])) if is_visible else float32(0)
                    total[head] += weight
                    scores[step, head] = weight
                for part in range(chunks_per_lane):
                    w = part * 4
                    v = unpack((v_words[step, w], v_words[step, w + 1], v_words[step, w + 2], v_words[step, w + 3]))
                    for head in range(num_heads):
                        for i in range(per_chunk):
                            mixed[head, part * per_chunk + i] += scores[step, head] * v[i]

        # Join the tokens of a warp, then its warps.
        distance = lanes
        while distance < 32:
            for head in range(num_heads):
                other = cuda.shfl_xor_sync(_ALL_LANES, largest[head], distance)
                new_largest = max(largest[head], other)
                mine = exp2(float32(largest[head] - new_largest))
                its = exp2(float32(other - new_largest))
                largest[head] = new_largest
                total[head] = total[head] * mine + cuda.shfl_xor_sync(_ALL_LANES, total[head], distance) * its
                for i in range(numbers):
                    theirs = cuda.shfl_xor_sync(_ALL_LANES, mixed[head, i], distance)
                    mixed[head, i] = mixed[head, i] * mine + theirs * its
            distance <<= 1

        all_mixed = cuda.shared.array((NUM_WARPS, num_heads, head_dim), float32)
        all_largest = cuda.shared.array((NUM_WARPS, num_heads), float32)
        all_totals = cuda.shared.array((NUM_WARPS, num_heads), float32)
        if place == 0:
            for head in range(num_heads):
                if lane == 0:
                    all_largest[warp, head] = largest[head]
                    all_totals[warp, head] = total[head]
                for part in range(chunks_per_lane):
                    chunk = first_chunk + part * lanes
                    if chunk < num_chunks:
                        for i in range(per_chunk):
                            all_mixed[warp, head, chunk * per_chunk + i] = mixed[head, part * per_chunk + i]
        cuda.syncthreads()

        index = thread
        while index < num_words:
            head = index // words_per_head
            word = index - head * words_per_head
            in_group = first_in_group + head
            if in_group < group_size:
                top = _LOWEST
                for other in range(NUM_WARPS):
                    top = max(top, all_largest[other, head])
                whole, low, high = float32(0), float32(0), float32(0)
                for other in range(NUM_WARPS):
                    weight = exp2(float32(all_largest[other, head] - top))
                    whole += all_totals[other, head] * weight
                    low += all_mixed[other, head, word * per_word] * weight
                    high += all_mixed[other, head, word * per_word + per_word - 1] * weight
                query_head = kv_head * group_size + in_group
                if num_splits == 1:
                    inverse = float32(_ONE / whole) if whole > 0 else float32(0)
                    place_out = int32(token * num_query_heads + query_head) * words_per_head + word
                    out[place_out] = pack(float32(low * inverse), float32(high * inverse))
                else:
                    piece = (row * num_query_heads + query_head) * num_splits + split
                    partial[piece * head_dim + word * per_word] = low
                    partial[piece * head_dim + word * per_word + per_word - 1] = high
                    if word == 0:
                        statistics[2 * piece] = top
                        statistics[2 * piece + 1] = whole
            index += NUM_THREADS

    return decode
