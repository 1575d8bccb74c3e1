"""The CPU runner against stock transformers models and against itself: nothing else in a step may change a row."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from chatserve.models.cpu.architecture import obstacle
from chatserve.models.cpu.cpu_runner import CpuRunner
from chatserve.models.cpu.packed_file import open_packed
from chatserve.models.cpu.packing import ArraySource, pack_model
from chatserve.models.cpu.sources import KERNEL_MODULES
from tests.cpu_runner import tiny_models as tiny

pytestmark = pytest.mark.timeout(600)  # the first run ever compiles the step
RANDOM = np.random.default_rng(0)
TOKENS: list[int] = RANDOM.integers(0, tiny.VOCAB_SIZE, 700).tolist()
BLOCKS: list[int] = RANDOM.permutation(64).tolist()


@pytest.fixture(scope="module", params=["float32", "float16"])
def runner(request: pytest.FixtureRequest) -> CpuRunner:
    return tiny.cpu_runner(tiny.stock_model("llama"), "int8", kv_dtype=request.param)


def logits_in_chunks(runner: CpuRunner, block_size: int) -> NDArray[np.float32]:
    """Of all of TOKENS[:330], read in four steps."""
    blocks = np.random.default_rng(1).permutation(512)[: -(-330 // block_size)].tolist()
    logits = [
        runner.forward(tiny.step((TOKENS[first:end], first, blocks), block_size=block_size)).copy()
        for first, end in ((0, 61), (61, 62), (62, 300), (300, 330))
    ]
    return np.concatenate(logits)


@pytest.mark.parametrize("block_size", [1, 2, 16, 256])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_equals_transformers_in_fp32(family: str, block_size: int) -> None:
    model = tiny.stock_model(family)
    logits = logits_in_chunks(tiny.cpu_runner(model, block_size=block_size, num_blocks=512), block_size)
    np.testing.assert_allclose(logits, tiny.stock_logits(model, TOKENS[:330]), atol=1e-4)


@pytest.mark.parametrize(("family", "block_size"), list(zip(tiny.FAMILIES, [1, 16, 256, 2, 64, 8], strict=True)))
def test_float16_pages_change_little(family: str, block_size: int) -> None:
    model = tiny.stock_model(family)
    runner = tiny.cpu_runner(model, block_size=block_size, num_blocks=512, kv_dtype="float16")
    stock = tiny.stock_logits(model, TOKENS[:330])
    assert np.abs(logits_in_chunks(runner, block_size) - stock).mean() < 1e-3 * stock.std()
    assert 2 * runner.info.kv_bytes_per_token == tiny.cpu_runner(model).info.kv_bytes_per_token


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_8_bit_weights_change_little(family: str) -> None:
    model = tiny.stock_model(family)
    ours = tiny.cpu_runner(model, "int8").forward(tiny.step((TOKENS[:100], 0, BLOCKS)))
    stock = tiny.stock_logits(model, TOKENS[:100])
    assert np.abs(ours - stock).mean() < 0.03 * stock.std()


@given(cuts=st.lists(st.integers(1, 699), max_size=6), others=st.lists(st.integers(1, 40), max_size=5))
@settings(max_examples=15)
def test_chunks_and_company_change_no_bit(runner: CpuRunner, cuts: list[int], others: list[int]) -> None:
    whole = runner.forward(tiny.step((TOKENS, 0, BLOCKS[:44]))).copy()
    bounds = sorted({0, *cuts, 700})
    spare = BLOCKS[44:]
    for first, end in itertools.pairwise(bounds):
        company = [(TOKENS[length:][:length], 0, [spare[i], *spare[10:13]]) for i, length in enumerate(others)]
        logits = runner.forward(tiny.step(*company, (TOKENS[first:end], first, BLOCKS[:44])))
        assert np.array_equal(logits[sum(others) :], whole[first:end])


def test_threads_and_block_size_change_no_bit() -> None:
    model = tiny.stock_model("mistral")
    results = []
    for num_threads, block_size in ((1, 16), (2, 16), (3, 1), (2, 64)):
        runner = tiny.cpu_runner(model, "int8", num_threads, 512, block_size)
        blocks = list(range(-(-300 // block_size)))
        runner.forward(tiny.step((TOKENS[:299], 0, blocks), block_size=block_size))
        results.append(runner.forward(tiny.step((TOKENS[299:300], 299, blocks), block_size=block_size)).copy())
    assert all(np.array_equal(result, results[0]) for result in results)


def test_only_wanted_rows_are_returned_and_slots_of_minus_one_not_written(runner: CpuRunner) -> None:
    whole = runner.forward(tiny.step((TOKENS[:50], 0, BLOCKS))).copy()
    again = tiny.step(([1, 2, *TOKENS[48:50]], 46, BLOCKS), wanted=[2, 3])
    again.slots[:] = -1
    assert np.array_equal(runner.forward(again)[0].shape, (tiny.VOCAB_SIZE,))
    last = tiny.step((TOKENS[49:50], 49, BLOCKS))
    assert np.array_equal(runner.forward(last)[0], whole[49]), "the pages hold what was written first"
    assert len(runner.forward(tiny.step((TOKENS[:50], 0, BLOCKS), wanted=[]))) == 0


def test_blocks_are_swapped_out_restored_and_copied_in_this_order(runner: CpuRunner) -> None:
    whole = runner.forward(tiny.step((TOKENS[:33], 0, [0, 1, 2]))).copy()
    overwrite = tiny.step((TOKENS[40:60], 0, [0, 1]))
    overwrite.swap_out = np.array([[0, 3], [1, 1]], np.int32)
    runner.forward(overwrite)
    last = tiny.step((TOKENS[32:33], 32, [7, 8, 9]))
    last.swap_in = np.array([[3, 7], [1, 10]], np.int32)
    last.copies = np.array([[10, 8], [2, 9]], np.int32)
    assert np.array_equal(runner.forward(last)[0], whole[32])
    chain = tiny.step((TOKENS[32:33], 32, [11, 8, 9]))
    chain.copies = np.array([[7, 12], [12, 11]], np.int32)
    assert np.array_equal(runner.forward(chain)[0], whole[32]), "a later pair reads what an earlier one wrote"


def test_a_packed_model_can_be_saved_and_opened(tmp_path: Path) -> None:
    model = tiny.stock_model("qwen3")
    arrays = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
    packed = pack_model(model.config.to_dict(), ArraySource(arrays), "int8", None)
    path = tmp_path / "packed.bin"
    assert open_packed(path) is None
    packed.save(path)
    opened = open_packed(path)
    assert opened is not None
    assert opened.architecture == packed.architecture
    results = []
    for weights in (packed, opened):
        runner = CpuRunner(weights, "tiny", 1)
        runner.allocate(8, 16)
        results.append(runner.forward(tiny.step((TOKENS[:40], 0, [3, 1, 2]))).copy())
    assert np.array_equal(results[0], results[1])
    path.write_bytes(path.read_bytes()[:-1])
    assert open_packed(path) is None, "a file that was cut off is not used"


def test_what_cannot_be_run_is_told() -> None:
    assert obstacle(tiny.stock_model("llama").config.to_dict()) is None
    assert "gpt2" in str(obstacle({"model_type": "gpt2"}))
    yarn = {"model_type": "llama", "head_dim": 64, "rope_parameters": {"rope_type": "yarn"}}
    assert "yarn" in str(obstacle(yarn))


def test_a_second_process_compiles_nothing(runner: CpuRunner) -> None:
    runner.forward(tiny.step((TOKENS[:5], 0, BLOCKS)))
    code = "from chatserve.models.cpu import step as s; print(s.run_step.stats, s.cut_work.stats)"
    script = (
        "from tests.cpu_runner import tiny_models as tiny;"
        "tiny.cpu_runner(tiny.stock_model('llama'), 'int8').forward(tiny.step(([1, 2], 0, [0])));" + code
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=dict(os.environ), capture_output=True, text=True, check=True
    )
    assert "cache_misses=Counter()" in done.stdout.replace("cache_misses={}", "cache_misses=Counter()"), done.stdout


def test_all_that_a_step_is_compiled_from_is_watched() -> None:
    code = "import sys, chatserve.models.cpu.step, chatserve.models.cpu.entry_points; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    package = "chatserve.models.cpu."
    loaded = {name.removeprefix(package) for name in done.stdout.split() if name.startswith(package)}
    assert loaded - {"sources"} == set(KERNEL_MODULES)
