"""`Placement`: on which device and in which type a model runs."""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch

from chatserve.config import Config
from chatserve.errors import ModelLoadError
from chatserve.models.cuda_launcher import check_cuda

logger = logging.getLogger(__name__)


class Placement(NamedTuple):
    """A torch device and the type of the weights there."""

    device: torch.device
    dtype: torch.dtype


def choose_placement(config: Config) -> Placement:
    """Resolve ``auto``: CUDA when a device can be used, else the CPU; float32 on the CPU, bfloat16 on CUDA.

    Raises ModelLoadError when CUDA is asked for and cannot be used. A device that ``auto`` passes over, since a package
    or the driver is missing or too old, is logged as a warning that says what to install.
    """
    device = torch.device("cuda", 0) if _can_use_cuda(config) else torch.device("cpu")
    if config.dtype == "auto":
        return Placement(device, torch.float32 if device.type == "cpu" else torch.bfloat16)
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    return Placement(device, dtypes[config.dtype])


def _can_use_cuda(config: Config) -> bool:
    if config.device == "cpu":
        return False
    if not torch.cuda.is_available():
        if config.device == "cuda":
            is_built = torch.backends.cuda.is_built()
            reason = "no CUDA device was found" if is_built else "this torch is built without CUDA"
            raise ModelLoadError(f"{config.model}: cannot run on cuda: {reason}")
        return False
    try:
        check_cuda(torch.device("cuda", 0))
    except ModelLoadError as error:
        if config.device == "cuda":
            raise
        logger.warning("running on the CPU although there is a CUDA device: %s", error)
        return False
    return True
