"""Packed weights: exact where they must be; products equal the same arithmetic in numpy, on any processor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from chatserve.models.cpu.blocks import EXACT_KINDS, tile_blocks
from chatserve.models.cpu.embedding import read_row
from chatserve.models.cpu.products import (
    BLOCK_GROUP_BYTES,
    BLOCK_ROWS,
    NARROW_LIMIT,
    ROWS_AT_ONCE,
    WIDE_LIMIT,
    Form,
    multiply_tile,
)
from chatserve.models.cpu.rows import store_halves, store_row
from chatserve.models.cpu.tiles import (
    GROUP,
    GROUP_BYTES,
    TILE_ROWS,
    Kind,
    TiledMatrix,
    quantise_int8,
    quantise_rows,
    tile_float,
    tile_int4,
)
from chatserve.models.cpu.tuning import fastest_rows_at_once

Float32Array = NDArray[np.float32]
LIMITS = {Form.WIDE: WIDE_LIMIT, Form.NARROW: NARROW_LIMIT}
PRODUCTS = [(Kind.FLOAT32, Form.FLOATS), (Kind.INT8, Form.WIDE), (Kind.INT4, Form.WIDE), (Kind.INT4, Form.NARROW)]
NUM_ROWS, NUM_COLUMNS = 24, 96


def random_matrix(kind: Kind, seed: int = 0) -> TiledMatrix:
    random = np.random.default_rng(seed)
    weights = random.normal(size=(NUM_ROWS, NUM_COLUMNS)).astype(np.float32)
    if kind is Kind.FLOAT32:
        return tile_float(weights)
    if kind is Kind.INT8:
        return quantise_int8(weights)
    numbers = random.normal(size=(2, NUM_ROWS, NUM_COLUMNS // GROUP)).astype(np.float16)
    return tile_int4(random.integers(0, 16, weights.shape, np.uint8), numbers[0], numbers[1])


@njit
def prepare(form, x, x_stride, blocks, block_bytes, num_rows, num_groups):  # type: ignore[no-untyped-def]
    for row in range(num_rows):
        block = blocks + row // BLOCK_ROWS * block_bytes
        store_row(form, x + row * x_stride, block, row % BLOCK_ROWS, num_groups)


def product(matrix: TiledMatrix, form: Form, x: Float32Array, bias: Float32Array, at_once: int = 8) -> Float32Array:
    """All tiles of the matrix times all rows of x, by the kernels."""
    tiles, groups = matrix.data.shape[:2]
    blocks = np.full((-(-len(x) // BLOCK_ROWS), groups, BLOCK_GROUP_BYTES[form]), 0x55, np.uint8)
    prepare(int(form), x.ctypes.data, x.strides[0], blocks.ctypes.data, blocks.strides[0], len(x), groups)
    out = np.zeros((len(x), tiles * TILE_ROWS), np.float32)
    for tile in range(tiles):
        multiply_tile(
            int(matrix.kind), int(form), matrix.data.ctypes.data + tile * groups * GROUP_BYTES[matrix.kind],
            blocks.ctypes.data, bias.ctypes.data + 32 * tile, 0,
            out.ctypes.data + 32 * tile, out.strides[0], groups, len(x), at_once,
        )  # fmt: skip
    return out


@pytest.mark.parametrize(("kind", "form"), PRODUCTS)
@given(
    num_rows=st.integers(1, 19),
    seed=st.integers(0, 1000),
    at_once=st.sampled_from(ROWS_AT_ONCE),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e6]),
)
def test_products_equal_numpy(kind: Kind, form: Form, num_rows: int, seed: int, at_once: int, scale: float) -> None:
    random, matrix = np.random.default_rng(seed), random_matrix(kind, seed)
    x = (random.normal(size=(num_rows, NUM_COLUMNS)) * scale).astype(np.float32)
    bias = random.normal(size=NUM_ROWS).astype(np.float32)
    rounded: NDArray[Any] = x.astype(np.float64)
    if form is not Form.FLOATS:
        quants, scales = quantise_rows(x, LIMITS[form])
        rounded = quants * np.repeat(scales.astype(np.float64), GROUP, axis=1)
    expected = rounded @ matrix.unpack().T.astype(np.float64) + bias
    size = np.abs(rounded) @ np.abs(matrix.unpack().T) + np.abs(bias)
    np.testing.assert_array_less(np.abs(product(matrix, form, x, bias, at_once) - expected), 4e-6 * size + 1e-30)


@pytest.mark.parametrize(("kind", "form"), PRODUCTS)
def test_a_row_has_the_same_bits_alone_and_among_others(kind: Kind, form: Form) -> None:
    random, matrix = np.random.default_rng(1), random_matrix(kind)
    x = random.normal(size=(15, NUM_COLUMNS)).astype(np.float32)
    bias = random.normal(size=NUM_ROWS).astype(np.float32)
    together = product(matrix, form, x, bias)
    assert all(np.array_equal(product(matrix, form, x, bias, at_once), together) for at_once in ROWS_AT_ONCE)
    for row in range(15):
        assert np.array_equal(product(matrix, form, x[row : row + 1], bias)[0], together[row])


@pytest.mark.parametrize(("kind", "form"), PRODUCTS)
def test_the_kernel_that_is_chosen_is_not_much_slower_than_another(kind: Kind, form: Form) -> None:
    """Timed here on its own, with the weights of a whole matrix."""
    random, matrix = np.random.default_rng(1), random_matrix(kind)
    x, bias = random.normal(size=(48, NUM_COLUMNS)).astype(np.float32), np.zeros(NUM_ROWS, np.float32)
    seconds = dict.fromkeys(ROWS_AT_ONCE, float("inf"))
    for _ in range(30):
        for at_once in ROWS_AT_ONCE:
            started = time.perf_counter()
            product(matrix, form, x, bias, at_once)
            seconds[at_once] = min(seconds[at_once], time.perf_counter() - started)
    assert seconds[fastest_rows_at_once(kind, form)] < 1.5 * min(seconds.values())


@pytest.mark.parametrize("form", [Form.WIDE, Form.NARROW])
def test_the_largest_numbers_do_not_overflow(form: Form) -> None:
    quants = np.full((8, 64), 15, np.uint8)
    ones = np.ones((8, 2), np.float16)
    x = np.ones((2, 64), np.float32)
    x[1] = -1
    out = product(tile_int4(quants, ones, ones), form, x, np.zeros(8, np.float32))
    np.testing.assert_allclose(out, np.array([[64 * 16], [-64 * 16]]) * np.ones((1, 8)), rtol=1e-6)


@pytest.mark.parametrize("kind", EXACT_KINDS, ids=lambda kind: str(kind.name))
@pytest.mark.parametrize("num_rows", [8, 12])
def test_gguf_blocks_are_taken_over_exactly(kind: GGMLQuantizationType, num_rows: int) -> None:
    weights = np.random.default_rng(2).normal(size=(num_rows, 128)).astype(np.float32)
    blocks = quantize(weights, kind)
    matrix = tile_blocks(blocks, kind)
    assert np.array_equal(matrix.unpack(), dequantize(blocks, kind))


@pytest.mark.parametrize("shape", [(8, 32), (5, 40), (17, 8)])
def test_float_weights_are_exact_and_8_bit_weights_close(shape: tuple[int, int]) -> None:
    weights = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    assert np.array_equal(tile_float(weights).unpack(), weights)
    rounded = quantise_int8(weights)
    assert (rounded.num_rows, rounded.num_columns) == shape
    assert np.abs(rounded.unpack() - weights).max() <= np.abs(weights).max() / 127 * 0.51


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: str(kind.name))
def test_a_row_of_a_tiled_matrix_can_be_read(kind: Kind) -> None:
    matrix, out = random_matrix(kind), np.empty(NUM_COLUMNS, np.float32)
    for row in (0, 7, 8, 23):
        read_row(int(kind), matrix.data.ctypes.data, row, NUM_COLUMNS // GROUP, out.ctypes.data)
        np.testing.assert_allclose(out, matrix.unpack()[row], rtol=1e-6)  # one product may be fused, one not


@njit
def to_halves(x, out, num_vectors):  # type: ignore[no-untyped-def]
    store_halves(x, out, num_vectors)


@pytest.mark.parametrize("size", [1e-9, 1e-7, 1e-5, 1e-3, 1.0, 1e4])
def test_numbers_are_rounded_to_float16_like_numpy(size: float) -> None:
    x = (np.random.default_rng(4).normal(size=4096) * size).astype(np.float32)
    x[:16] = [0, -0.0, 65504, -65504, 2**-14, 2**-24, 2**-25, 2**-25 * 1.5, 1 + 2**-11, 1 + 3 * 2**-11] + [6e-8] * 6
    out = np.empty(len(x), np.float16)
    to_halves(x.ctypes.data, out.ctypes.data, len(x) // 8)
    assert np.array_equal(out.view(np.uint16), x.astype(np.float16).view(np.uint16))


def test_what_float16_cannot_hold_becomes_its_largest_number() -> None:
    x = np.array([65520, 1e6, -1e6, np.inf, -np.inf, 7, 8, 9], np.float32)
    out = np.empty(8, np.float16)
    to_halves(x.ctypes.data, out.ctypes.data, 1)
    assert out.tolist() == [65504, 65504, -65504, 65504, -65504, 7, 8, 9]


def test_all_this_holds_on_processors_without_avx2() -> None:
    """Runs this file again with numba told to compile for a plain x86-64 or ARM."""
    if os.environ.get("NUMBA_CPU_NAME") == "generic":
        from chatserve.models.cpu.vector_code import HAS_AVX2

        assert not HAS_AVX2
        return
    plain = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=os.environ | plain, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
