"""Call a C function of int64 arguments by its address (see `entry_points`)."""

from __future__ import annotations

from typing import Any

from numba import types

from chatserve.models.cpu import vector_code as code

NUM_MULTIPLY_ARGUMENTS, NUM_ATTEND_ARGUMENTS = 11, 15


def _make_call(num_arguments: int) -> Any:
    @code.intrinsic
    def call(typing, address, arguments):  # type: ignore[no-untyped-def]
        """Call the function at `address` with a tuple of int64."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            numbers = [builder.extract_value(args[1], index) for index in range(num_arguments)]
            code.call_address(builder, args[0], numbers)
            return context.get_dummy_value()

        return types.void(types.int64, types.UniTuple(types.int64, num_arguments)), generate

    return call


call_multiply, call_attend = _make_call(NUM_MULTIPLY_ARGUMENTS), _make_call(NUM_ATTEND_ARGUMENTS)
