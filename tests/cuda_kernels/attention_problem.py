"""One layer's attention over pages: random problems, their launches, and the float64 answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from cuda_kernels.compiled import CompiledKernel
from cuda_kernels.decode import heads_per_block
from cuda_kernels.extend import ROWS_PER_TILE
from tests.cuda_kernels.compiling import combine_kernel, decode_kernel, extend_kernel
from tests.ptx.launcher import PtxLauncher

TOLERANCES = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2}


@dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for and how the pages are cut."""

    kind: str
    head_dim: int
    num_kv_heads: int
    group_size: int
    block_size: int


@dataclass(frozen=True)
class Rule:
    """As `AttentionRule`, with the number of splits of decode attention."""

    window: int = 0
    softcap: float = 0.0
    num_splits: int = 1


class Problem:
    """Sequences of (context, new tokens) whose K and V are in scattered or consecutive blocks.

    Slots past a context and blocks of nobody hold NaN, so that reading them spoils the answer.
    """

    def __init__(self, shape: Shape, lengths: list[tuple[int, int]], *, are_consecutive: bool, seed: int) -> None:
        self.shape, self.lengths = shape, lengths
        rng = np.random.default_rng(seed)
        dtype = getattr(torch, shape.kind)
        sizes = [-(-context // shape.block_size) for context, _ in lengths]
        num_blocks = sum(sizes) + 3
        order = np.arange(1, num_blocks) if are_consecutive else rng.permutation(num_blocks)
        self.tables = torch.zeros(len(lengths), max(sizes), dtype=torch.int32)
        page_shape = (num_blocks, shape.num_kv_heads, shape.block_size, shape.head_dim)
        self.keys, self.values = (torch.full(page_shape, torch.nan, dtype=dtype) for _ in range(2))
        self.runs: list[int] = []
        self.contexts: list[tuple[torch.Tensor, torch.Tensor]] = []
        used = 0
        for row, ((context, _), size) in enumerate(zip(lengths, sizes, strict=True)):
            blocks = torch.from_numpy(order[used : used + size].astype(np.int32))
            used += size
            self.tables[row, :size] = blocks
            self.runs.append(int(blocks[0]) if are_consecutive else -1)
            pair = tuple(
                torch.from_numpy(rng.standard_normal((context, shape.num_kv_heads, shape.head_dim), np.float32)).to(
                    dtype
                )
                for _ in range(2)
            )
            self.contexts.append((pair[0], pair[1]))
            positions = torch.arange(context)
            at = blocks[positions // shape.block_size].long(), slice(None), positions % shape.block_size
            self.keys[at], self.values[at] = pair
        num_tokens = sum(count for _, count in lengths)
        numbers = rng.standard_normal((num_tokens, self.num_query_heads, shape.head_dim), np.float32)
        self.query = torch.from_numpy(numbers).to(dtype)

    @property
    def num_query_heads(self) -> int:
        return self.shape.num_kv_heads * self.shape.group_size

    @property
    def scaling(self) -> float:
        return float(self.shape.head_dim**-0.5)

    def rows(self, padding: int = 0) -> torch.Tensor:
        """For the decode kernel: every new token is a row of its own; `padding` rows of a fixed grid come last."""
        rows, first = [], 0
        for chunk, ((context, count), run) in enumerate(zip(self.lengths, self.runs, strict=True)):
            rows += [(first + i, chunk, context - count + i + 1, run) for i in range(count)]
            first += count
        rows += [(first + i, 0, 0, -1) for i in range(padding)]
        return torch.tensor(rows, dtype=torch.int32)

    def tiles(self) -> torch.Tensor:
        """For the extend kernel."""
        tiles, first = [], 0
        for chunk, ((context, count), run) in enumerate(zip(self.lengths, self.runs, strict=True)):
            rows = count * self.shape.group_size
            tiles += [(chunk, first, count, start, context, run) for start in range(0, rows, ROWS_PER_TILE)]
            first += count
        return torch.tensor(tiles, dtype=torch.int32)

    def answer(self, rule: Rule) -> torch.Tensor:
        """float64[tokens, query heads, head_dim]."""
        rows: list[torch.Tensor] = []
        for (keys, values), (context, count) in zip(self.contexts, self.lengths, strict=True):
            for position in range(context - count, context):
                seen = slice(max(0, position - rule.window + 1) if rule.window else 0, position + 1)
                rows.append(self._attend(self.query[len(rows)], keys[seen], values[seen], rule))
        return torch.stack(rows)

    def _attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rule: Rule) -> torch.Tensor:
        repeated = (side.double().repeat_interleave(self.shape.group_size, 1) for side in (keys, values))
        k, v = repeated
        scores = torch.einsum("hd,thd->ht", query.double(), k) * self.scaling
        if rule.softcap:
            scores = rule.softcap * torch.tanh(scores / rule.softcap)
        return torch.einsum("ht,thd->hd", scores.softmax(1), v)


def run_decode(
    problem: Problem,
    rule: Rule,
    *,
    padding: int = 0,
    num_parts: int | None = None,
    kernel: CompiledKernel | None = None,
    combine: CompiledKernel | None = None,
) -> torch.Tensor:
    """What the decode kernel, and the combine kernel where the context is split, answer for every new token."""
    shape = problem.shape
    usual_parts, heads = heads_per_block(shape.group_size)
    decode = kernel or decode_kernel(shape.kind, shape.head_dim, heads, bool(rule.softcap))
    rows = problem.rows(padding)
    query = torch.cat([problem.query, problem.query.new_zeros(padding, *problem.query.shape[1:])])
    out = torch.full_like(query, torch.nan)
    pieces = (len(rows), problem.num_query_heads, rule.num_splits) if rule.num_splits > 1 else (0, 0, 0)
    partial, statistics = torch.full((*pieces, shape.head_dim), torch.nan), torch.full((*pieces, 2), torch.nan)
    per_word = 4 // query.itemsize
    launcher = PtxLauncher()
    launcher.launch(
        decode, (len(rows), shape.num_kv_heads * (num_parts or usual_parts), rule.num_splits),
        query, query.stride(0) // per_word, query.stride(1) // per_word, problem.keys, problem.values,
        problem.tables, problem.tables.shape[1], rows, out, partial, statistics, shape.group_size,
        shape.block_size.bit_length() - 1, problem.scaling, rule.window, rule.softcap,
    )  # fmt: skip
    if rule.num_splits > 1:
        grid, combine = (len(rows), problem.num_query_heads, 1), combine or combine_kernel(shape.kind, shape.head_dim)
        launcher.launch(combine, grid, partial, statistics, rows, out, rule.num_splits)
    return out


def run_extend(problem: Problem, rule: Rule, *, kernel: CompiledKernel | None = None) -> torch.Tensor:
    """What the extend kernel answers for every new token."""
    shape, tiles = problem.shape, problem.tiles()
    kernel = kernel or extend_kernel(shape.kind, shape.head_dim, bool(rule.softcap))
    out = torch.full_like(problem.query, torch.nan)
    PtxLauncher().launch(
        kernel, (len(tiles), shape.num_kv_heads, 1), problem.query, problem.query.stride(0) // 2,
        problem.query.stride(1) // 2, problem.keys, problem.values, problem.tables, problem.tables.shape[1], tiles, out,
        shape.group_size, shape.block_size.bit_length() - 1, problem.scaling, rule.window, rule.softcap,
    )  # fmt: skip
    return out


def check(problem: Problem, rule: Rule, out: torch.Tensor) -> None:
    """Compare with float64, within the tolerance of the number format; rows of padding are zeros."""
    expected = problem.answer(rule)
    error = (out[: len(expected)].double() - expected).abs().max().item()
    assert error <= TOLERANCES[problem.shape.kind], f"off by {error:.2g}"
    assert not out[len(expected) :].any()
