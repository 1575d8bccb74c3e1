"""`upload`: numbers on their way to the device, in one copy that nobody waits for."""

from __future__ import annotations

import numpy as np
import torch

from chatserve.models.batch import Int32Array


def upload(device: torch.device, *arrays: Int32Array) -> list[torch.Tensor]:
    """Each array, int32 and of any shape, on `device`, for whatever is launched next on the current stream.

    They are gathered in pinned memory: a copy from any other makes the host wait for the stream. Torch's allocator
    gives the memory out again once the copy has been made, so steps take turns with a few buffers.
    """
    sizes = [array.size for array in arrays]
    pinned = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
    np.concatenate([array.ravel() for array in arrays], out=pinned.numpy())
    there = pinned.to(device, non_blocking=True)
    return [piece.view(array.shape) for piece, array in zip(there.split(sizes), arrays, strict=True)]
