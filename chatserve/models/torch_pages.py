"""`TorchPages`: paged attention with plain torch operations, for devices without kernels of their own.

It gathers every chunk's K and V through the block table and calls scaled dot-product attention chunk by chunk.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from chatserve.errors import ModelLoadError
from chatserve.models.attention_backend import AttentionRule
from chatserve.models.attention_shape import AttentionShape
from chatserve.models.batch import Batch, Int32Array


class TorchPages:
    """An `AttentionBackend` on any torch device; pages are [layer, K or V, block, slot in block, KV head, head_dim]."""

    def __init__(self, shape: AttentionShape, device: torch.device, dtype: torch.dtype) -> None:
        self._shape, self._device, self._dtype = shape, device, dtype
        self._block_size = 0
        self._chunks: list[_Chunk] = []

    @property
    def bytes_per_token(self) -> int:
        return 2 * self._shape.num_layers * self._shape.num_kv_heads * self._shape.head_dim * self._dtype.itemsize

    def allocate(self, num_blocks: int, block_size: int, num_host_blocks: int) -> None:
        self._block_size = block_size
        tail = (block_size, self._shape.num_kv_heads, self._shape.head_dim)
        head = (self._shape.num_layers, 2)
        try:
            self._pages = torch.zeros(*head, num_blocks, *tail, dtype=self._dtype, device=self._device)
            self._host = torch.zeros(*head, num_host_blocks, *tail, dtype=self._dtype)
        except RuntimeError as error:  # torch.OutOfMemoryError is one; the CPU allocator raises the plain class
            raise ModelLoadError(f"cannot allocate {num_blocks} KV blocks on {self._device}: {error}") from error

    def begin(self, batch: Batch) -> None:
        for device_block, host_block in batch.swap_out.tolist():
            self._host[:, :, host_block] = self._pages[:, :, device_block].cpu()
        for host_block, device_block in batch.swap_in.tolist():
            self._pages[:, :, device_block] = self._host[:, :, host_block].to(self._device)
        for source, destination in batch.copies.tolist():
            self._pages[:, :, destination] = self._pages[:, :, source]
        written = np.flatnonzero(batch.slots >= 0)
        self._written = self._to_device(written)
        self._slots = self._to_device(batch.slots[written])
        self._chunks = [self._chunk(batch, index) for index in range(batch.num_chunks)]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: AttentionRule
    ) -> torch.Tensor:
        keys, values = (self._pages[layer, side].flatten(0, 1) for side in (0, 1))
        keys[self._slots] = key[self._written].to(self._dtype)
        values[self._slots] = value[self._written].to(self._dtype)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for chunk in self._chunks:
            rows = slice(chunk.start, chunk.end)
            out[rows] = _attend_chunk(query[rows], keys[chunk.slots], values[chunk.slots], chunk, rule).to(query.dtype)
        return out

    def _chunk(self, batch: Batch, index: int) -> _Chunk:
        start, end = int(batch.query_starts[index]), int(batch.query_starts[index + 1])
        context_len = int(batch.context_lens[index])
        positions = np.arange(context_len, dtype=np.int64)
        slots = batch.block_tables[index, positions // self._block_size].astype(np.int64) * self._block_size
        slots += positions % self._block_size
        first = context_len - (end - start)
        return _Chunk(start, end, self._to_device(slots), torch.arange(first, context_len, device=self._device))

    def _to_device(self, numbers: Int32Array | np.ndarray[tuple[int], np.dtype[np.int64]]) -> torch.Tensor:
        return torch.from_numpy(numbers.astype(np.int64)).to(self._device)


class _Chunk:
    """Where a chunk's queries lie in the step, which slots hold its context, and its queries' positions."""

    def __init__(self, start: int, end: int, slots: torch.Tensor, positions: torch.Tensor) -> None:
        self.start, self.end, self.slots, self.positions = start, end, slots, positions

    def visible(self, window: int) -> torch.Tensor:
        """bool[queries, context]: which tokens each query sees."""
        distance = self.positions[:, None] - torch.arange(len(self.slots), device=self.slots.device)
        return (distance >= 0) & (distance < window) if window else distance >= 0


def _attend_chunk(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, chunk: _Chunk, rule: AttentionRule
) -> torch.Tensor:
    q, k, v = (tensor.transpose(0, 1) for tensor in (query.to(key.dtype), key, value))
    visible = chunk.visible(rule.window)
    if not rule.softcap:
        attended = scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=visible, scale=rule.scaling, enable_gqa=q.shape[0] != k.shape[0]
        )
        return attended[0].transpose(0, 1)
    group_size = q.shape[0] // k.shape[0]
    scores = q.float() @ k.repeat_interleave(group_size, 0).float().transpose(1, 2) * rule.scaling
    scores = (rule.softcap * torch.tanh(scores / rule.softcap)).masked_fill(~visible, float("-inf"))
    return (scores.softmax(-1) @ v.repeat_interleave(group_size, 0).float()).transpose(0, 1)
