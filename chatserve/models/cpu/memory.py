"""Numbers at an address, as arrays: kernels pass addresses on, which cost no reference counting."""

from __future__ import annotations

from typing import Any

from numba import carray, njit, types  # type: ignore[attr-defined]

from chatserve.models.cpu import vector_code as code


def _make_pointer(kind: Any) -> Any:
    @code.intrinsic
    def pointer(typing, address):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate

    return pointer


_float_pointer, _byte_pointer, _short_pointer, _int_pointer = (
    _make_pointer(kind) for kind in (types.float32, types.int8, types.int16, types.int32)
)


@njit(nogil=True, inline="always")
def floats_at(address, count):  # type: ignore[no-untyped-def]
    """The float32[count] at `address`; valid while its memory is."""
    return carray(_float_pointer(address), (count,))


@njit(nogil=True, inline="always")
def bytes_at(address, count):  # type: ignore[no-untyped-def]
    """The int8[count] at `address`; valid while its memory is."""
    return carray(_byte_pointer(address), (count,))


@njit(nogil=True, inline="always")
def shorts_at(address, count):  # type: ignore[no-untyped-def]
    """The int16[count] at `address`; valid while its memory is."""
    return carray(_short_pointer(address), (count,))


@njit(nogil=True, inline="always")
def ints_at(address, count):  # type: ignore[no-untyped-def]
    """The int32[count] at `address`; valid while its memory is."""
    return carray(_int_pointer(address), (count,))
