"""Checks and measurements of the CUDA kernels and backend, for a machine with a GPU (compute capability 8.0 or newer).

Usage: ``python benchmarks/gpu_check.py [--quick]``; `make gpu-check` runs all of it in under 8 minutes. Numerics are
compared with torch in float64 on the device. Bandwidths are of the bytes that must be moved, against a copy on the
device; times are the best of several rounds between CUDA events. One table comes last; the exit status is 1 when a
check failed, 2 when there is no device. Goals that are not met are told, they fail nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM
from transformers.models.llama import LlamaConfig

from chatserve.errors import ModelLoadError
from chatserve.models.attention_backend import AttentionRule
from chatserve.models.attention_shape import AttentionShape
from chatserve.models.batch import Batch
from chatserve.models.cuda_launcher import CudaLauncher
from chatserve.models.cuda_pages import CudaPages
from chatserve.models.transformers_runner import TransformersRunner

BLOCK_SIZE = 16
TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
SHAPES = {
    "1B": LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=8192,
    ),
    "8B": LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=8192,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A line of the table; `verdict` is "ok", "FAILED", "goal met", "goal missed" or empty."""

    what: str
    value: str
    verdict: str = ""


class Report:
    """Prints rows as they come, and all again at the end."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._started = time.perf_counter()

    def add(self, what: str, value: str, verdict: str = "") -> None:
        self._rows.append(Row(what, value, verdict))
        print(f"[{time.perf_counter() - self._started:5.0f} s] {what}: {value} {verdict}", flush=True)

    def finish(self) -> int:
        print("\n| what | value | verdict |\n|---|---|---|")
        for row in self._rows:
            print(f"| {row.what} | {row.value} | {row.verdict} |")
        return int(any(row.verdict == "FAILED" for row in self._rows))


def make_batch(lengths: list[tuple[int, int]], *, is_scattered: bool, seed: int = 0) -> Batch:
    """Sequences of (context, new tokens), each in blocks of its own from 1 on."""
    sizes = [-(-context // BLOCK_SIZE) for context, _ in lengths]
    order = np.arange(1, sum(sizes) + 1)
    if is_scattered:
        order = np.random.default_rng(seed).permutation(order)
    tables = np.zeros((len(lengths), max(sizes)), np.int32)
    for row, start, size in zip(tables, np.cumsum([0, *sizes]), sizes, strict=False):
        row[:size] = order[start : start + size]
    counts = np.array([count for _, count in lengths])
    contexts = np.array([context for context, _ in lengths], np.int32)
    positions = np.concatenate([np.arange(context - count, context) for context, count in lengths])
    chunks = np.repeat(np.arange(len(lengths)), counts)
    slots = tables[chunks, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    tokens = np.random.default_rng(seed).integers(0, 1000, len(positions)).astype(np.int32)
    return Batch(tokens, positions.astype(np.int32), slots.astype(np.int32), starts, contexts, tables, starts[1:] - 1)


@cache
def launcher() -> CudaLauncher:
    return CudaLauncher(torch.device("cuda", torch.cuda.current_device()))


def make_pages(shape: AttentionShape, dtype: torch.dtype, num_blocks: int, num_host_blocks: int = 0) -> CudaPages:
    device = torch.device("cuda", torch.cuda.current_device())
    num_processors = torch.cuda.get_device_properties(device).multi_processor_count
    pages = CudaPages(shape, device, dtype, launcher(), num_processors)
    pages.allocate(num_blocks, BLOCK_SIZE, num_host_blocks)
    return pages


def best_seconds(function: Callable[[], object], rounds: int = 5, repeats: int = 10) -> float:
    """Shortest time of one call, over rounds of several."""
    function()
    times = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(repeats):
            function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / repeats)
    return min(times)


def graphed(function: Callable[[], object]) -> Callable[[], None]:
    """The function's kernels without the time that Python takes to launch them."""
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


# Numerics


def attend_in_float64(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, batch: Batch, rule: AttentionRule
) -> torch.Tensor:
    """`keys` and `values` hold the whole contexts, sequence after sequence."""
    rows, start = [], 0
    group_size = query.shape[1] // keys.shape[1]
    for first, end, context in zip(
        batch.query_starts.tolist(), batch.query_starts[1:].tolist(), batch.context_lens.tolist(), strict=False
    ):
        k, v = (side[start : start + context].double().repeat_interleave(group_size, 1) for side in (keys, values))
        start += context
        scores = torch.einsum("qhd,thd->hqt", query[first:end].double(), k) * rule.scaling
        if rule.softcap:
            scores = rule.softcap * torch.tanh(scores / rule.softcap)
        distance = torch.arange(context - (end - first), context)[:, None] - torch.arange(context)
        visible = (distance >= 0) & ((distance < rule.window) if rule.window else True)
        weights = scores.masked_fill(~visible.to(scores.device), float("-inf")).softmax(-1)
        rows.append(torch.einsum("hqt,thd->qhd", weights, v))
    return torch.cat(rows)


def numeric_error(dtype: torch.dtype, head_dim: int, group_size: int, rule: AttentionRule, *, scattered: bool) -> float:
    """Largest difference from float64 of a step that mixes decodes and chunks, whose contexts are written first."""
    lengths = [(1000, 1), (37, 37), (600, 100), (1, 1), (3000, 1), (130, 70)]
    shape = AttentionShape(1, 2 * group_size, 2, head_dim, rule.softcap > 0)
    torch.manual_seed(head_dim + group_size)
    total = sum(context for context, _ in lengths)
    keys, values = (torch.randn(total, 2, head_dim, device="cuda").to(dtype) for _ in range(2))
    pages = make_pages(shape, dtype, sum(-(-context // BLOCK_SIZE) for context, _ in lengths) + 1)
    whole = make_batch([(context, context) for context, _ in lengths], is_scattered=scattered)
    pages.begin(whole)
    pages.attend(0, torch.zeros(total, shape.num_query_heads, head_dim, device="cuda", dtype=dtype), keys, values, rule)
    batch = make_batch(lengths, is_scattered=scattered)
    ends = np.cumsum([context for context, _ in lengths])
    new = torch.from_numpy(
        np.concatenate([np.arange(end - count, end) for end, (_, count) in zip(ends, lengths, strict=True)])
    ).cuda()
    query = torch.randn(batch.num_tokens, shape.num_query_heads, head_dim, device="cuda").to(dtype)
    pages.begin(batch)
    out = pages.attend(0, query, keys[new], values[new], rule)
    return float((out.double() - attend_in_float64(query, keys, values, batch, rule)).abs().max())


def check_numerics(report: Report, *, is_quick: bool) -> None:
    cases = [(torch.bfloat16, 128, 4), (torch.float16, 64, 3), (torch.float32, 64, 3)]
    if not is_quick:
        cases += [(torch.bfloat16, 80, 1), (torch.float16, 96, 1), (torch.bfloat16, 256, 2), (torch.bfloat16, 128, 11)]
    for dtype, head_dim, group_size in cases:
        rules = [AttentionRule(head_dim**-0.5), AttentionRule(head_dim**-0.5, window=90)]
        if head_dim == 256:
            rules.append(AttentionRule(head_dim**-0.5, softcap=20.0))
        for rule in rules:
            for scattered in (True, False):
                error = numeric_error(dtype, head_dim, group_size, rule, scattered=scattered)
                kind = f"{str(dtype)[6:]} {head_dim} x {group_size}, window {rule.window}, softcap {rule.softcap:g}"
                place = "scattered" if scattered else "consecutive"
                verdict = "ok" if error <= TOLERANCES[dtype] else "FAILED"
                report.add(f"error, {kind}, {place}", f"{error:.1e}", verdict)


# Speed of attention and of moves


def copy_bandwidth() -> float:
    """Bytes a second that a copy on the device reads and writes together."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / best_seconds(lambda: target.copy_(source))


def measure_decode(report: Report, copy: float, *, is_quick: bool) -> None:
    """Llama 8B's heads: 32 query heads, 8 KV heads of 128, bfloat16."""
    contexts, batches = ([1024, 16384], [1, 64]) if is_quick else ([256, 1024, 4096, 16384], [1, 8, 64, 256])
    free_bytes = torch.cuda.mem_get_info()[0]
    for context in contexts:
        for num_sequences in batches:
            num_bytes = 2 * context * num_sequences * 8 * 128 * 2  # K and V
            if 3 * num_bytes > free_bytes:
                continue
            _compare_decode(report, copy, num_sequences, context, num_bytes)


def _compare_decode(report: Report, copy: float, num_sequences: int, context: int, num_bytes: int) -> None:
    shape, dtype, rule = AttentionShape(1, 32, 8, 128), torch.bfloat16, AttentionRule(128**-0.5)
    query = torch.randn(num_sequences, 32, 128, device="cuda", dtype=dtype)
    new = torch.randn(2, num_sequences, 8, 128, device="cuda", dtype=dtype)
    pages = make_pages(shape, dtype, num_sequences * -(-context // BLOCK_SIZE) + 1)
    seconds = {}
    for place in ("scattered", "consecutive"):
        pages.begin(make_batch([(context, 1)] * num_sequences, is_scattered=place == "scattered"))
        seconds[place] = best_seconds(graphed(lambda: pages.attend(0, query, new[0], new[1], rule)))
    keys, values = torch.randn(2, num_sequences, 8, context, 128, device="cuda", dtype=dtype)
    sdpa = best_seconds(graphed(lambda: scaled_dot_product_attention(query[:, :, None], keys, values, enable_gqa=True)))
    what, rate = f"decode, {num_sequences} x {context}", num_bytes / seconds["scattered"]
    report.add(f"{what}: bandwidth, share of a copy's", f"{rate / 1e9:.0f} GB/s, {rate / copy:.2f}")
    for place, its_seconds in seconds.items():
        ratio = its_seconds / sdpa
        met = "goal met" if ratio <= 1.05 else "goal missed"
        report.add(f"{what}: time / SDPA on contiguous KV, {place}", f"{ratio:.2f}", met)


def measure_prefill(report: Report) -> None:
    shape, dtype, rule = AttentionShape(1, 32, 8, 128), torch.bfloat16, AttentionRule(128**-0.5)
    for num_tokens in (512, 4096):
        query = torch.randn(num_tokens, 32, 128, device="cuda", dtype=dtype)
        keys, values = torch.randn(2, num_tokens, 8, 128, device="cuda", dtype=dtype)
        pages = make_pages(shape, dtype, num_tokens // BLOCK_SIZE + 1)
        pages.begin(make_batch([(num_tokens, num_tokens)], is_scattered=True))
        ours = best_seconds(lambda p=pages, q=query, k=keys, v=values: p.attend(0, q, k, v, rule))
        q, k, v = (side.transpose(0, 1)[None] for side in (query, keys, values))
        sdpa = best_seconds(
            lambda q=q, k=k, v=v: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        )
        tera = 4 * num_tokens**2 / 2 * 32 * 128 / ours / 1e12
        report.add(f"prefill attention, {num_tokens} tokens: TFLOP/s, time / SDPA", f"{tera:.0f}, {ours / sdpa:.2f}")


def measure_moves(report: Report, copy: float) -> None:
    shape, dtype, count = AttentionShape(32, 32, 8, 128), torch.bfloat16, 512
    pages = make_pages(shape, dtype, 2 * count, num_host_blocks=count)
    block_bytes = BLOCK_SIZE * pages.bytes_per_token
    numbers = np.random.default_rng(0).permutation(2 * count).astype(np.int32)
    empty, none = np.empty(0, np.int32), np.empty((0, 0), np.int32)
    host = np.arange(count, dtype=np.int32)
    moves = {
        "copies": np.stack([numbers[:count], numbers[count:]], 1),
        "swap_out": np.stack([numbers[:count], host], 1),
        "swap_in": np.stack([host, numbers[:count]], 1),
    }
    for name, pairs in moves.items():
        batch = Batch(empty, empty, empty, np.zeros(1, np.int32), empty, none, empty, **{name: pairs})

        def move(given: Batch = batch) -> None:
            pages.begin(given)
            pages.launcher.await_aside()

        rate = count * block_bytes / best_seconds(move, rounds=3, repeats=3)
        share = f", {2 * rate / copy:.2f} of a copy's" if name == "copies" else ""
        report.add(f"{name} of {count} blocks of {block_bytes >> 10} KiB", f"{rate / 1e9:.1f} GB/s{share}")


# Whole models


def measure_model(report: Report, name: str) -> None:
    config = SHAPES[name]
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval().requires_grad_(False)
    runner = TransformersRunner(model, name)
    num_sequences, context = 64, 512
    runner.allocate(num_sequences * (-(-context // BLOCK_SIZE) + 1) + 1, BLOCK_SIZE)
    for count in (1, 8, num_sequences):
        batch = make_batch([(context, 1)] * count, is_scattered=True)
        with_graph = _forward_seconds(lambda b=batch: runner.forward(b))
        eager = _forward_seconds(lambda b=batch: _forward_eagerly(runner, b))
        value = f"{count / with_graph:.0f} tok/s, {1e3 * with_graph:.2f} ms, eager {1e3 * eager:.2f} ms"
        report.add(f"{name}: decode of {count} with context {context}, CUDA graph", value)
        same = np.abs(runner.forward(batch) - _forward_eagerly(runner, batch)).max()
        report.add(f"{name}: logits of {count}, graph against eager", f"{same:.1e}", "ok" if same < 0.1 else "FAILED")
    batch = make_batch([(2048, 2048)], is_scattered=True)
    report.add(f"{name}: prefill of 2048", f"{2048 / _forward_seconds(lambda: runner.forward(batch)):.0f} tok/s")


def _forward_seconds(forward: Callable[[], object], num_steps: int = 10) -> float:
    forward()
    times = []
    for _ in range(num_steps):
        started = time.perf_counter()
        forward()  # ends with the logits on the host
        times.append(time.perf_counter() - started)
    return float(np.median(times))


def _forward_eagerly(runner: TransformersRunner, batch: Batch) -> np.ndarray:
    """The same step without a graph, which takes only steps whose logits are all wanted once and in order."""
    twice = Batch(
        batch.token_ids, batch.positions, batch.slots, batch.query_starts, batch.context_lens, batch.block_tables,
        np.concatenate([batch.wanted, batch.wanted[-1:]]),
    )  # fmt: skip
    return runner.forward(twice)[:-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer shapes and only the 1B model")
    is_quick = parser.parse_args().quick
    if not torch.cuda.is_available():
        print("gpu-check: torch finds no CUDA device here; nothing was checked", file=sys.stderr)
        return 2
    report = Report()
    try:
        with torch.inference_mode():
            name, memory = torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1] >> 30
            report.add("device", f"{name}, {memory} GiB, torch {torch.__version__}")
            check_numerics(report, is_quick=is_quick)
            copy = copy_bandwidth()
            report.add("copy on the device, bytes read and written", f"{copy / 1e9:.0f} GB/s")
            measure_decode(report, copy, is_quick=is_quick)
            measure_prefill(report)
            measure_moves(report, copy)
            for model in ["1B"] if is_quick else ["1B", "8B"]:
                measure_model(report, model)
                torch.cuda.empty_cache()
    except (ModelLoadError, RuntimeError) as error:
        report.add("stopped", str(error).splitlines()[0], "FAILED")
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
