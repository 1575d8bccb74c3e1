"""`BlockMover`: copies of blocks on the device, and swaps with the host pool beside the computation."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from chatserve.models.batch import Int32Array
from chatserve.models.cuda_kernel_set import KernelSet
from chatserve.models.cuda_launcher import Launcher
from chatserve.models.cuda_upload import upload
from cuda_kernels.compiled import CompiledKernel
from cuda_kernels.element_type import CHUNK_BYTES

_STAGING_BYTES = 64 << 20


class BlockMover:
    """Moves whole blocks of all layers, K and V.

    A swap out gathers blocks in a staging buffer on the device, whose copy to the host then runs beside the forward; a
    swap in copies blocks to the staging buffer and scatters them. The host pool is pinned, block after block, so each
    block is one copy.

    Args:
        pages: [planes, blocks, KV heads, block_size, head_dim] on the device; a plane is K or V of one layer.
        num_host_blocks: size of the host pool.
    """

    def __init__(self, launcher: Launcher, kernels: KernelSet, pages: torch.Tensor, num_host_blocks: int) -> None:
        self._launcher, self._kernels, self._pages = launcher, kernels, pages
        self._num_planes, self._num_blocks = pages.shape[:2]
        self._chunks = pages[0, 0].numel() * pages.itemsize // CHUNK_BYTES
        block_shape = (self._num_planes, *pages.shape[2:])
        is_pinned = pages.device.type == "cuda"
        self._host = torch.zeros(num_host_blocks, *block_shape, dtype=pages.dtype, pin_memory=is_pinned)
        block_bytes = self._num_planes * self._chunks * CHUNK_BYTES
        self._capacity = max(1, min(num_host_blocks, _STAGING_BYTES // block_bytes))
        self._staging = torch.empty(
            self._capacity if num_host_blocks else 0, *block_shape, dtype=pages.dtype, device=pages.device
        )

    def copy(self, pairs: Int32Array) -> None:
        """Copy (source, destination) blocks, all at once: no destination may be a source or named twice."""
        if len(pairs):
            grid = (len(pairs), self._num_planes, 1)
            [blocks] = upload(self._pages.device, pairs)
            self._launcher.launch(self._kernels.copy, grid, self._pages, self._num_blocks, self._chunks, blocks)

    def swap_out(self, pairs: Int32Array) -> None:
        """Save (device block, host block) pairs; the device blocks may be overwritten by whatever is launched next."""
        for part in self._parts(pairs):
            self._launcher.await_aside()
            self._move(self._kernels.gather, part[:, 0])
            with self._launcher.aside():
                for entry, host_block in enumerate(part[:, 1].tolist()):
                    self._host[host_block].copy_(self._staging[entry], non_blocking=True)

    def swap_in(self, pairs: Int32Array) -> None:
        """Restore (host block, device block) pairs, for whatever is launched next."""
        for part in self._parts(pairs):
            with self._launcher.aside():
                for entry, host_block in enumerate(part[:, 0].tolist()):
                    self._staging[entry].copy_(self._host[host_block], non_blocking=True)
            self._launcher.await_aside()
            self._move(self._kernels.scatter, part[:, 1])

    def _move(self, kernel: CompiledKernel, blocks: Int32Array) -> None:
        grid = (len(blocks), self._num_planes, 1)
        [there] = upload(self._pages.device, blocks)
        self._launcher.launch(kernel, grid, self._pages, self._num_blocks, self._chunks, there, self._staging)

    def _parts(self, pairs: Int32Array) -> Iterator[Int32Array]:
        """As many pairs at a time as the staging buffer has room for."""
        for start in range(0, len(pairs), self._capacity):
            yield pairs[start : start + self._capacity]
