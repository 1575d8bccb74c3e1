"""Choose the CPU runner for a model, and load it: weights are packed once, and read as they are packed afterwards."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguf.constants import GGMLQuantizationType

from chatserve.config import Config
from chatserve.errors import ModelLoadError
from chatserve.models.cache_folder import cache_folder
from chatserve.models.converted import ConvertedModel, open_converted
from chatserve.models.cpu.architecture import obstacle
from chatserve.models.cpu.blocks import EXACT_KINDS
from chatserve.models.cpu.gguf_source import GgufSource
from chatserve.models.cpu.packed_file import PackedModel, open_packed
from chatserve.models.cpu.packing import ArraySource, pack_model
from chatserve.models.cpu.tiles import Kind
from chatserve.models.gguf_file import GgufFile
from chatserve.models.loading import LoadedModel, with_text
from chatserve.patience import told_when_slow

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from chatserve.models.cpu.cpu_runner import CpuRunner

logger = logging.getLogger(__name__)

_PACKING_VERSION = 1
_SILENT_SECONDS = 4.0
_CUDA_DEVICES = ("/dev/nvidiactl", "/dev/dxg")
"""Where the driver of an NVIDIA GPU shows itself, on Linux and WSL; without one torch need not be asked."""


def load_gguf_for_cpu(path: Path, name: str, config: Config) -> LoadedModel | None:
    """Load a GGUF file for the CPU runner, or return None when transformers shall run it.

    That is so on another device, and with ``weights = "auto"`` when `config.dtype` names a type or weights would have
    to be rounded. Raises ModelLoadError when the file cannot be read, or `config.weights` asks for what cannot be.
    """
    if not _is_for_cpu(config):
        return None
    converted = open_converted(path, cache_folder())
    if config.weights == "auto":
        if obstacle(converted.config) or not _has_exact_kinds(GgufFile(path)):
            return None
    else:
        _check(converted.config, name)
    weights = "native" if config.weights == "auto" else config.weights
    return with_text(_make_runner(_open_or_pack(path, converted, weights), name, config), converted)


def load_transformers_for_cpu(model: PreTrainedModel, name: str, config: Config) -> CpuRunner:
    """Pack a transformers model as ``config.weights`` says. Raises ModelLoadError when the CPU runner cannot run it."""
    facts = model.config.get_text_config().to_dict()
    _check(facts, name)
    if model.device.type != "cpu":
        raise ModelLoadError(f"{name}: weights {config.weights} are for the CPU, the device is {model.device}")
    arrays: dict[str, Any] = {key: value.float().numpy() for key, value in model.state_dict().items()}
    return _make_runner(pack_model(facts, ArraySource(arrays), config.weights, None), name, config)


def _is_for_cpu(config: Config) -> bool:
    if config.weights == "auto" and config.dtype != "auto":
        return False
    is_cpu = config.device == "cpu" or (config.device == "auto" and not _has_usable_gpu(config))
    if config.device == "cuda" and config.weights != "auto":
        raise ModelLoadError(f"{config.model}: weights {config.weights} are for the CPU, the device is cuda")
    return is_cpu or config.weights != "auto"


def _has_usable_gpu(config: Config) -> bool:
    if not any(Path(device).exists() for device in _CUDA_DEVICES):
        return False
    from chatserve.models.placement import choose_placement  # imports torch

    return choose_placement(config).device.type == "cuda"


def _has_exact_kinds(gguf: GgufFile) -> bool:
    exact = {*EXACT_KINDS, GGMLQuantizationType.F32}
    matrices = [tensor for tensor in gguf.tensors.values() if len(tensor.shape) > 1]
    return all(tensor.kind in exact for tensor in gguf.tensors.values()) and all(
        tensor.kind in EXACT_KINDS for tensor in matrices
    )


def _check(config: dict[str, Any], name: str) -> None:
    if reason := obstacle(config):
        raise ModelLoadError(f"{name}: the CPU runner cannot run it: {reason}; leave weights at auto")


def _open_or_pack(path: Path, converted: ConvertedModel, weights: str) -> PackedModel:
    target = converted.folder / f"packed-{weights}-{_PACKING_VERSION}.bin"
    if packed := open_packed(target):
        return packed
    logger.info("packing the weights of %s (once)", path.name)
    source = GgufSource(GgufFile(path), converted.config)
    packed = pack_model(converted.config, source, weights, source.rotary_divisors())
    packed.save(target)
    return open_packed(target) or packed


def _make_runner(packed: PackedModel, name: str, config: Config) -> CpuRunner:
    is_exact = all(matrix.kind is Kind.FLOAT32 for matrix in packed.matrices.values())
    kv_dtype = config.kv_dtype
    if kv_dtype == "auto":
        kv_dtype = "float32" if is_exact else "float16"
    message = "preparing the CPU kernels; the first time they are compiled for this machine, which takes about a minute"
    with told_when_slow(_SILENT_SECONDS, lambda: logger.info(message)):
        from chatserve.models.cpu.cpu_runner import CpuRunner  # compiles code, unless a cache has it

        runner = CpuRunner(packed, name, kv_dtype=kv_dtype, activations=config.activations)
        runner.warm_up()
    return runner
