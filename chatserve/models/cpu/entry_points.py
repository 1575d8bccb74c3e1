"""The two inner kernels as C functions, which the step calls through their addresses.

numba compiles what a function calls into it, level by level, and would optimise the kernels six times over: a step then
takes a minute and a half to compile.

numba's cache on disk looks at the changes of one file and at the variables that a function closes over. So functions
that are cached close over a number made of all kernel sources, and a change of any of them compiles them anew; what
they call is not cached on its own.
"""

from __future__ import annotations

from typing import Any

from numba import cfunc, types

from chatserve.models.cpu.attention import attend_split
from chatserve.models.cpu.calls import NUM_ATTEND_ARGUMENTS, NUM_MULTIPLY_ARGUMENTS
from chatserve.models.cpu.products import multiply_tile
from chatserve.models.cpu.sources import source_digest


def _make_functions(sources: int) -> tuple[Any, Any]:
    @cfunc(types.void(*[types.int64] * NUM_MULTIPLY_ARGUMENTS), cache=True)
    def multiply(  # type: ignore[no-untyped-def]
        kind, form, weights, x, initial, initial_stride, out, out_stride, groups, rows, at_once
    ):
        if sources:
            multiply_tile(kind, form, weights, x, initial, initial_stride, out, out_stride, groups, rows, at_once)

    @cfunc(types.void(*[types.int64] * NUM_ATTEND_ARGUMENTS), cache=True)
    def attend(  # type: ignore[no-untyped-def]
        queries, num_rows, group_size, position, head_dim, item_bytes, keys, values, block_bytes, block_size,
        table, split, window, scratch, result,
    ):  # fmt: skip
        if sources:
            attend_split(
                queries, num_rows, group_size, position, head_dim, item_bytes, keys, values, block_bytes, block_size,
                table, split, window, 0.0, scratch, result,
            )  # fmt: skip

    return multiply, attend


multiply_entry, attend_entry = _make_functions(source_digest())
