"""`CudaPages`: the KV pages on a CUDA device, with the kernels of `cuda_kernels`."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import torch

from chatserve.errors import ModelLoadError
from chatserve.models.attention_backend import AttentionRule
from chatserve.models.attention_shape import AttentionShape
from chatserve.models.batch import Batch
from chatserve.models.cuda_block_moves import BlockMover
from chatserve.models.cuda_graphs import GRAPH_SIZES, DecodeGraphs
from chatserve.models.cuda_kernel_set import compile_kernels
from chatserve.models.cuda_launcher import Launcher
from chatserve.models.cuda_step import Step, choose_splits, decode_rows, extend_tiles
from chatserve.models.cuda_upload import upload
from cuda_kernels.compiled import CompiledKernel
from cuda_kernels.decode import heads_per_block
from cuda_kernels.element_type import CHUNK_BYTES

logger = logging.getLogger(__name__)


class CudaPages:
    """A `GraphedBackend` for CUDA devices of compute capability 8.0 and newer.

    Pages are [plane, block, KV head, slot, head_dim] in the model's format, where planes 2 i and 2 i + 1 are K and V of
    layer i. Decodes and float32 chunks are rows of the decode kernel, other chunks go to the tensor cores.

    Args:
        launcher: where kernels run; raises ModelLoadError when one cannot be loaded.
        num_processors: the device's streaming multiprocessors, to be filled by splitting long contexts.
    """

    def __init__(
        self, shape: AttentionShape, device: torch.device, dtype: torch.dtype, launcher: Launcher, num_processors: int
    ) -> None:
        self._shape, self._device, self._dtype, self._launcher = shape, device, dtype, launcher
        self._kernels = compile_kernels(shape, str(dtype).removeprefix("torch."))
        for kernel in self._kernels.all:
            launcher.load(kernel)
        self._group_size = shape.num_query_heads // shape.num_kv_heads
        num_parts, heads = heads_per_block(self._group_size)
        self._blocks_per_row = shape.num_kv_heads * num_parts
        self._wanted_blocks = 4 * num_processors
        pieces = 2 * self._wanted_blocks * heads  # splitting makes at most twice the wanted thread blocks
        self._partial = torch.empty(pieces, shape.head_dim, dtype=torch.float32, device=device)
        self._statistics = torch.empty(pieces, 2, dtype=torch.float32, device=device)
        self._none = torch.empty(0, dtype=torch.float32, device=device)
        self._graphs: DecodeGraphs | None = None

    @property
    def launcher(self) -> Launcher:
        return self._launcher

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def bytes_per_token(self) -> int:
        return 2 * self._shape.num_layers * self._shape.num_kv_heads * self._shape.head_dim * self._dtype.itemsize

    def allocate(self, num_blocks: int, block_size: int, num_host_blocks: int) -> None:
        self._block_size, self._block_shift = block_size, block_size.bit_length() - 1
        block_shape = (self._shape.num_kv_heads, block_size, self._shape.head_dim)
        try:
            self._pages = torch.zeros(
                2 * self._shape.num_layers, num_blocks, *block_shape, dtype=self._dtype, device=self._device
            )
            self._mover = BlockMover(self._launcher, self._kernels, self._pages, num_host_blocks)
        except RuntimeError as error:  # torch.OutOfMemoryError is one; pinning host memory raises the plain class
            raise ModelLoadError(f"cannot allocate {num_blocks} KV blocks on {self._device}: {error}") from error

    def capture(
        self, forward: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor], max_model_len: int
    ) -> None:
        table_width = -(-max_model_len // self._block_size)
        try:
            self._graphs = DecodeGraphs(self, forward, self._device, table_width, GRAPH_SIZES)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            logger.warning("decode steps run without CUDA graphs, since the model cannot be captured: %s", reason)

    def run_decodes(self, batch: Batch) -> torch.Tensor | None:
        if self._graphs is None or not self._graphs.can_run(batch):
            return None
        self._move(batch)
        return self._graphs.run(batch)

    def begin(self, batch: Batch) -> None:
        self._move(batch)
        self.use(self._plan(batch))

    def _move(self, batch: Batch) -> None:
        """Swap and copy blocks as `batch` says."""
        self._mover.swap_out(batch.swap_out)
        self._mover.swap_in(batch.swap_in)
        self._mover.copy(batch.copies)

    def use(self, step: Step) -> None:
        """Attend by `step` until another is given."""
        self._step = step

    def splits_for(self, num_rows: int, longest: int) -> int:
        """Into how many parts the contexts of `num_rows` decodes are cut, the longest of `longest` tokens."""
        return choose_splits(num_rows, self._blocks_per_row, longest, self._wanted_blocks)

    def rows_of(self, batch: Batch) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
        """The rows of a batch of decodes, see `decode_rows`."""
        return decode_rows(batch, self._block_size, np.ones(batch.num_chunks, bool))

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: AttentionRule
    ) -> torch.Tensor:
        keys, values = self._pages[2 * layer], self._pages[2 * layer + 1]
        self._write(key, value, keys, values)
        q = _in_chunks(query.to(self._dtype))
        out = torch.empty(query.shape, dtype=self._dtype, device=self._device)
        if len(self._step.rows):
            self._decode(q, keys, values, out, rule)
        if len(self._step.tiles):
            self._extend(q, keys, values, out, rule)
        return out.to(query.dtype)

    def _plan(self, batch: Batch) -> Step:
        counts = np.diff(batch.query_starts)
        is_row = counts == 1 if self._kernels.extend else np.ones(len(counts), bool)
        rows = decode_rows(batch, self._block_size, is_row)
        tiles = extend_tiles(batch, self._block_size, self._group_size, is_row)
        slots, rows_there, tiles_there, tables = upload(self._device, batch.slots, rows, tiles, batch.block_tables)
        longest = int(rows[:, 2].max(initial=1))
        return Step(slots, rows_there, tiles_there, tables, self.splits_for(len(rows), longest))

    def _write(self, key: torch.Tensor, value: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        if key.dtype == value.dtype == torch.float32:
            kernel, k, v = self._kernels.write_float32, _in_chunks(key), _in_chunks(value)
        else:
            kernel, k, v = self._kernels.write, _in_chunks(key.to(self._dtype)), _in_chunks(value.to(self._dtype))
        per_chunk = CHUNK_BYTES // k.itemsize
        strides = [stride // per_chunk for tensor in (k, v) for stride in tensor.stride()[:2]]
        self._launcher.launch(
            kernel, (len(k), 1, 1), k, v, *strides, keys, values, self._step.slots, self._shape.num_kv_heads,
            self._block_shift,
        )  # fmt: skip

    def _decode(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor, rule: AttentionRule
    ) -> None:
        step = self._step
        is_split = step.num_splits > 1
        partial, statistics = (self._partial, self._statistics) if is_split else (self._none, self._none)
        self._launcher.launch(
            self._kernels.decode, (len(step.rows), self._blocks_per_row, step.num_splits),
            query, *_word_strides(query), keys, values, step.block_tables, step.block_tables.shape[1], step.rows, out,
            partial, statistics, self._group_size, self._block_shift, rule.scaling, rule.window, rule.softcap,
        )  # fmt: skip
        if is_split:
            grid = (len(step.rows), self._shape.num_query_heads, 1)
            self._launcher.launch(self._kernels.combine, grid, partial, statistics, step.rows, out, step.num_splits)

    def _extend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor, rule: AttentionRule
    ) -> None:
        step, kernel = self._step, self._extend_kernel()
        self._launcher.launch(
            kernel, (len(step.tiles), self._shape.num_kv_heads, 1), query, *_word_strides(query), keys, values,
            step.block_tables, step.block_tables.shape[1], step.tiles, out, self._group_size, self._block_shift,
            rule.scaling, rule.window, rule.softcap,
        )  # fmt: skip

    def _extend_kernel(self) -> CompiledKernel:
        assert self._kernels.extend, "float32 chunks are rows"
        return self._kernels.extend


def _in_chunks(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself when every head's row starts at a chunk, else a contiguous copy."""
    per_chunk = CHUNK_BYTES // tensor.itemsize
    is_aligned = tensor.data_ptr() % CHUNK_BYTES == 0 and all(stride % per_chunk == 0 for stride in tensor.stride()[:2])
    return tensor if is_aligned and tensor.stride(2) == 1 else tensor.contiguous()


def _word_strides(query: torch.Tensor) -> tuple[int, int]:
    """Strides of a token and a head in words of 32 bits."""
    per_word = 4 // query.itemsize
    return query.stride(0) // per_word, query.stride(1) // per_word
