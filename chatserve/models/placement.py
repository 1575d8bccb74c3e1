"""`Placement`: on which device and in which type a model runs."""

from __future__ import annotations

from typing import NamedTuple

import torch

from chatserve.config import Config
from chatserve.errors import ModelLoadError


class Placement(NamedTuple):
    """A torch device and the type of the weights there."""

    device: torch.device
    dtype: torch.dtype


def choose_placement(config: Config) -> Placement:
    """Resolve ``auto``: CUDA when there is a device, else the CPU; float32 on the CPU, bfloat16 on CUDA.

    Raises ModelLoadError when CUDA is asked for and is not there.
    """
    has_cuda = torch.cuda.is_available()
    if config.device == "cuda" and not has_cuda:
        reason = "no CUDA device was found" if torch.backends.cuda.is_built() else "this torch is built without CUDA"
        raise ModelLoadError(f"{config.model}: cannot run on cuda: {reason}")
    device = torch.device("cuda" if has_cuda and config.device != "cpu" else "cpu")
    if config.dtype == "auto":
        return Placement(device, torch.float32 if device.type == "cpu" else torch.bfloat16)
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    return Placement(device, dtypes[config.dtype])
