"""What numba.cuda has no words for: 128-bit accesses, packed 16-bit numbers, asynchronous copies and tensor cores.

Memory is addressed in chunks of 16 bytes: `load_chunk(pointer, index)` reads the 128 bits at ``pointer + 16 * index``
as four uint32 words. Pointers are kernel parameters of type `WORDS`, aligned to 16 bytes. Shared arrays are given by
`shared_address`, a 32-bit byte address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core import config
from numba.cuda.extending import intrinsic

WORDS = types.CPointer(types.uint32)
FLOATS = types.CPointer(types.float32)
INTS = types.CPointer(types.int32)

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_FOUR_WORDS = types.UniTuple(types.uint32, 4)
_BYTES_PER_CHUNK = 16
_SHARED_SPACE = 3


def _chunk_address(builder: Any, pointer: Any, index: Any) -> Any:
    """Generic 64-bit address of a chunk."""
    return builder.add(builder.ptrtoint(pointer, _I64), builder.mul(index, ir.Constant(_I64, _BYTES_PER_CHUNK)))


def _assembly(
    builder: Any, text: str, results: Sequence[Any], operands: Sequence[Any], constraints: str, *, ordered: bool
) -> list[Any]:
    """Inline PTX; returns its results. `ordered`: it reads or writes memory that others change."""
    result = results[0] if len(results) == 1 else ir.LiteralStructType(results) if results else ir.VoidType()
    function = ir.FunctionType(result, [operand.type for operand in operands])
    clobbers = (constraints + ",~{memory}").removeprefix(",") if ordered else constraints
    value = builder.call(ir.InlineAsm(function, text, clobbers, side_effect=ordered), list(operands))
    return [value] if len(results) == 1 else [builder.extract_value(value, i) for i in range(len(results))]


def _tuple_of(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
    return context.make_tuple(builder, signature.return_type, values)


def _items(builder: Any, value: Any, count: int) -> list[Any]:
    return [builder.extract_value(value, i) for i in range(count)]


# Global memory


@intrinsic
def load_chunk(typing_context: Any, pointer: Any, index: Any) -> Any:
    """The four words of a chunk that this kernel may also write."""
    signature = _FOUR_WORDS(WORDS, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_I32, 4)
        address = _chunk_address(builder, *arguments)
        loaded = builder.load(builder.inttoptr(address, vector.as_pointer(1)))
        loaded.align = _BYTES_PER_CHUNK
        words = [builder.extract_element(loaded, ir.Constant(_I32, i)) for i in range(4)]
        return _tuple_of(context, builder, signature, words)

    return signature, generate


@intrinsic
def load_chunk_if(typing_context: Any, pointer: Any, index: Any, wanted: Any) -> Any:
    """The four words of a chunk that nobody writes while the kernel runs; zeros, and no access, unless `wanted`."""
    signature = _FOUR_WORDS(WORDS, types.int64, types.boolean)
    text = (
        "{ .reg .pred p; setp.ne.b32 p, $5, 0; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; "
        "@p ld.global.nc.v4.b32 {$0, $1, $2, $3}, [$4]; }"
    )

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, index, wanted = arguments
        operands = [_chunk_address(builder, pointer, index), builder.zext(wanted, _I32)]
        words = _assembly(builder, text, [_I32] * 4, operands, "=&r,=&r,=&r,=&r,l,r", ordered=False)
        return _tuple_of(context, builder, signature, words)

    return signature, generate


@intrinsic
def store_chunk(typing_context: Any, pointer: Any, index: Any, words: Any) -> Any:
    """Write four words as one chunk."""
    signature = types.void(WORDS, types.int64, _FOUR_WORDS)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, index, words = arguments
        vector = ir.VectorType(_I32, 4)
        value = ir.Constant(vector, ir.Undefined)
        for i, word in enumerate(_items(builder, words, 4)):
            value = builder.insert_element(value, word, ir.Constant(_I32, i))
        target = builder.inttoptr(_chunk_address(builder, pointer, index), vector.as_pointer(1))
        builder.store(value, target).align = _BYTES_PER_CHUNK
        return context.get_dummy_value()

    return signature, generate


# Packed numbers


def _unpack_halves(builder: Any, word: Any, half: Any) -> list[Any]:
    parts = (builder.trunc(builder.lshr(word, ir.Constant(_I32, shift)), ir.IntType(16)) for shift in (0, 16))
    return [builder.fpext(builder.bitcast(part, half), _F32) for part in parts]


def _unpack_brains(builder: Any, word: Any) -> list[Any]:
    """bfloat16 is the upper half of a float32."""
    low = builder.shl(word, ir.Constant(_I32, 16))
    high = builder.and_(word, ir.Constant(_I32, 0xFFFF0000))
    return [builder.bitcast(part, _F32) for part in (low, high)]


def _unpacking(numbers_per_word: int, unpack: Callable[[Any, Any], list[Any]]) -> Any:
    def unpack_chunk(typing_context: Any, words: Any) -> Any:
        signature = types.UniTuple(types.float32, 4 * numbers_per_word)(_FOUR_WORDS)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            words = _items(builder, arguments[0], 4)
            numbers = [number for word in words for number in unpack(builder, word)]
            return _tuple_of(context, builder, signature, numbers)

        return signature, generate

    return intrinsic(unpack_chunk)


unpack_float32 = _unpacking(1, lambda builder, word: [builder.bitcast(word, _F32)])
unpack_float16 = _unpacking(2, lambda builder, word: _unpack_halves(builder, word, ir.HalfType()))
unpack_bfloat16 = _unpacking(2, _unpack_brains)


def _packing(instruction: str | None) -> Any:
    """Two float32 into one word, the first in its lower half, rounded to nearest even; or the first alone as it is."""

    def pack(typing_context: Any, first: Any, second: Any) -> Any:
        signature = types.uint32(types.float32, types.float32)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            if instruction is None:
                return builder.bitcast(arguments[0], _I32)
            return _assembly(builder, f"{instruction} $0, $2, $1;", [_I32], arguments, "=r,f,f", ordered=False)[0]

        return signature, generate

    return intrinsic(pack)


pack_float32 = _packing(None)
pack_float16 = _packing("cvt.rn.f16x2.f32")
pack_bfloat16 = _packing("cvt.rn.bf16x2.f32")


@intrinsic
def exp2(typing_context: Any, exponent: Any) -> Any:
    """Two to the power of a float32, within 2 units in the last place; 0 below -126."""
    signature = types.float32(types.float32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _assembly(builder, "ex2.approx.ftz.f32 $0, $1;", [_F32], arguments, "=f,f", ordered=False)[0]

    return signature, generate


# Shared memory and tensor cores


@intrinsic
def shared_address(typing_context: Any, array: Any) -> Any:
    """Byte address of a shared array."""
    signature = types.uint32(array)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(builder.addrspacecast(data, _I32.as_pointer(_SHARED_SPACE)), _I32)

    return signature, generate


@intrinsic
def copy_chunk_async(typing_context: Any, target: Any, pointer: Any, index: Any, wanted: Any) -> Any:
    """Start copying a chunk of global memory to the shared address `target`; zeros, and no access, unless `wanted`."""
    signature = types.void(types.uint32, WORDS, types.int64, types.boolean)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, pointer, index, wanted = arguments
        size = builder.mul(builder.zext(wanted, _I32), ir.Constant(_I32, _BYTES_PER_CHUNK))
        operands = [target, _chunk_address(builder, pointer, index), size]
        _assembly(builder, "cp.async.cg.shared.global [$0], [$1], 16, $2;", [], operands, "r,l,r", ordered=True)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def finish_copies(typing_context: Any) -> Any:
    """Wait for all copies that this thread started; other threads see them after a barrier."""
    signature = types.void()

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _assembly(builder, "cp.async.wait_all;", [], [], "", ordered=True)
        return context.get_dummy_value()

    return signature, generate


def _loading_matrices(kind: str) -> Any:
    def load_matrices(typing_context: Any, address: Any) -> Any:
        signature = _FOUR_WORDS(types.uint32)
        text = f"ldmatrix.sync.aligned.m8n8.x4{kind}.shared.b16 {{$0, $1, $2, $3}}, [$4];"

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            words = _assembly(builder, text, [_I32] * 4, arguments, "=r,=r,=r,=r,r", ordered=True)
            return _tuple_of(context, builder, signature, words)

        return signature, generate

    return intrinsic(load_matrices)


load_matrices = _loading_matrices("")
"""Four 8 x 8 matrices of 16-bit numbers from shared memory; lane i gives the address of row i % 8 of matrix i // 8."""
load_transposed = _loading_matrices(".trans")
"""The same, each matrix transposed."""


def _multiplying(kind: str) -> Any:
    """16 x 16 times 16 x 8 plus 16 x 8, on tensor cores, summed in float32."""

    def multiply(typing_context: Any, left: Any, right_low: Any, right_high: Any, sums: Any) -> Any:
        four_floats = types.UniTuple(types.float32, 4)
        signature = four_floats(_FOUR_WORDS, types.uint32, types.uint32, four_floats)
        text = (
            f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
            "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
        )

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            left, low, high, sums = arguments
            operands = [*_items(builder, left, 4), low, high, *_items(builder, sums, 4)]
            constraints = "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f"
            values = _assembly(builder, text, [_F32] * 4, operands, constraints, ordered=False)
            return _tuple_of(context, builder, signature, values)

        return signature, generate

    return intrinsic(multiply)


multiply_float16 = _multiplying("f16")
multiply_bfloat16 = _multiplying("bf16")


if config.ENABLE_CUDASIM:
    from cuda_kernels import simulated

    for _name in ("load_chunk", "load_chunk_if", "store_chunk", "exp2"):
        globals()[_name] = getattr(simulated, _name)
    for _kind in ("float32", "float16", "bfloat16"):
        globals()[f"unpack_{_kind}"] = getattr(simulated, f"unpack_{_kind}")
        globals()[f"pack_{_kind}"] = getattr(simulated, f"pack_{_kind}")
