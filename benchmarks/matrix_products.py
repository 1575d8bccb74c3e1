"""The CPU runner's matrix products against those of libraries, in thousand million multiply-adds a second.

    python benchmarks/matrix_products.py

The matrices of the default model, 1 to 512 rows, all cores. Ours are timed inside whole steps, so with everything that
sharing work among threads costs; a library multiplies one matrix again and again, which then lies in the caches. Of the
libraries, torch (MKL) and NumPy (OpenBLAS) multiply float32, torch's `_weight_int8pack_mm` weights of 8 bits with
bfloat16 rows, and FBGEMM, behind torch's dynamic quantisation, 8 bits with 8 bits of which all rows share one scale, so
that what else is in a step changes a row's result.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from chatserve.config import Config
from chatserve.models.batch import Batch
from chatserve.models.loading import load_model
from chatserve.models.threads import prepare_threads

if TYPE_CHECKING:
    from chatserve.models.cpu.cpu_runner import CpuRunner

MATRICES = {"qkv": (960, 576), "out": (576, 576), "gate and up": (3072, 576), "down": (576, 1536), "head": (49152, 576)}
"""Rows and columns, by the names of the step's stages; all but the head are there once a layer."""
NUM_LAYERS, NUM_ROUNDS, BLOCK_SIZE = 30, 5, 16
_MULTIPLY_ADDS = 2e8  # of one timing at least


def main() -> None:
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # of torch's dynamic quantisation
    warnings.filterwarnings("ignore", message=".*deprecated.*")
    prepare_threads()
    runner = cast("CpuRunner", load_model(Config(device="cpu")).runner)
    runner.allocate(1024, BLOCK_SIZE)
    print(f"{'matrix':12}{'rows':>5}" + "".join(f"{name:>22}" for name in ("ours", *libraries(8, 8, 1))))
    for num_rows in (1, 8, 32, 512):
        ours = our_speeds(runner, num_rows)
        for name, (height, width) in MATRICES.items():
            if name == "head" and num_rows > 32:
                continue  # only rows whose logits are wanted are multiplied with it
            speeds = [ours[name], *library_speeds(height, width, num_rows)]
            print(f"{name:12}{num_rows:5}" + "".join(f"{speed:22.0f}" for speed in speeds), flush=True)


def our_speeds(runner: CpuRunner, num_rows: int) -> dict[str, float]:
    """By the names of the stages; the median of some steps counts for each."""
    batch, seconds = rows_of_one_token(num_rows), {name: list[float]() for name in MATRICES}
    for _ in range(2 * NUM_ROUNDS):
        started = time.perf_counter()
        runner.forward(batch)
        elapsed, cycles = time.perf_counter() - started, runner.stage_cycles()
        for name in MATRICES:
            seconds[name].append(elapsed * cycles[name] / sum(cycles.values()))
    counts = {name: num_rows * height * width for name, (height, width) in MATRICES.items()}
    return {
        name: counts[name] * (1 if name == "head" else NUM_LAYERS) / np.median(seconds[name]) / 1e9 for name in MATRICES
    }


def rows_of_one_token(num_rows: int) -> Batch:
    """Sequences of one token each, so that attention takes little."""
    rows, zeros = np.arange(num_rows + 1, dtype=np.int32), np.zeros(num_rows, np.int32)
    wanted = rows[: min(num_rows, 32)]
    return Batch(1000 + rows[:-1], zeros, BLOCK_SIZE * rows[:-1], rows, zeros + 1, rows[:-1, None], wanted)


def library_speeds(height: int, width: int, num_rows: int) -> list[float]:
    count = num_rows * height * width
    num_calls = max(1, int(_MULTIPLY_ADDS / count))
    return [
        num_calls * count / fastest(multiply, num_calls) / 1e9
        for multiply in libraries(height, width, num_rows).values()
    ]


def libraries(height: int, width: int, num_rows: int) -> dict[str, Callable[[], Any]]:
    """Products of random rows with random weights, by the name of who multiplies."""
    weights, rows = torch.randn(height, width), torch.randn(num_rows, width)
    as_array: tuple[NDArray[np.float32], NDArray[np.float32]] = (rows.numpy(), weights.numpy().T)
    packed = torch.randint(-127, 128, (height, width), dtype=torch.int8)
    halves, scales = rows.bfloat16(), torch.rand(height).bfloat16()
    dynamic: Any = torch.ao.nn.quantized.dynamic.Linear(width, height)
    scale, zero = torch.full((height,), 0.02), torch.zeros(height, dtype=torch.int64)
    dynamic.set_weight_bias(torch.quantize_per_channel(weights, scale, zero, 0, torch.qint8), None)
    return {
        "torch float32": lambda: torch.nn.functional.linear(rows, weights),
        "NumPy float32": lambda: as_array[0] @ as_array[1],
        "torch int8 x bf16": lambda: torch._weight_int8pack_mm(halves, packed, scales),
        "FBGEMM, shared scale": lambda: dynamic(rows),
    }


@torch.inference_mode()
def fastest(multiply: Callable[[], Any], num_calls: int) -> float:
    """Seconds of `num_calls` calls."""
    seconds = []
    for _ in range(NUM_ROUNDS + 1):
        started = time.perf_counter()
        for _ in range(num_calls):
            multiply()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


if __name__ == "__main__":
    main()
