"""`TransformersRunner`: serve any decoder-only transformers model that uses the attention interface, over paged KV.

The batch is flattened to one row of T tokens with explicit positions. The model's attention calls land in
`_attend_paged`, which writes K and V into the pages and attends through the block tables; the model builds no mask
and no cache.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel

from chatserve.errors import ModelLoadError
from chatserve.models.attention_backend import AttentionBackend, AttentionRule, GraphedBackend
from chatserve.models.attention_shape import AttentionShape
from chatserve.models.batch import Batch, Float32Array
from chatserve.models.packed_linear import pack_linears
from chatserve.models.runner import ModelInfo
from chatserve.models.torch_pages import TorchPages

logger = logging.getLogger(__name__)

_ATTENTION_NAME = "chatserve"
_CHANGING_ROTARY = ("dynamic", "longrope")
_UNSUPPORTED_INPUTS = ("s_aux", "position_bias", "alibi", "head_mask")


class TransformersRunner:
    """A `Runner` over a transformers model; not batch-invariant, since torch picks its matrix kernels by batch size.

    Args:
        model: a causal language model in evaluation mode, on the device where it shall run.
        name: the id clients use.

    Raises ModelLoadError, naming the model and the reason, when its attention cannot be replaced.
    """

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        AttentionInterface.register(_ATTENTION_NAME, _attend_paged)
        self._model = model
        text_config = model.config.get_text_config()
        shape = probe(model, name)
        pack_linears(model)
        self._backend = _choose_backend(shape, model)
        self._graphed = self._backend if isinstance(self._backend, GraphedBackend) else None
        device, dtype = model.device.type, str(model.dtype).removeprefix("torch.")
        self._info = ModelInfo(
            name=name,
            vocab_size=text_config.vocab_size,
            max_model_len=text_config.max_position_embeddings,
            kv_bytes_per_token=self._backend.bytes_per_token,
            is_batch_invariant=False,
            description=f"{text_config.model_type}, {shape.num_layers} layers, {dtype}, {device}",
            device=str(model.device),
        )

    @property
    def info(self) -> ModelInfo:
        return self._info

    def allocate(self, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        self._backend.allocate(num_blocks, block_size, num_host_blocks)
        if self._graphed:
            with torch.inference_mode():
                self._graphed.capture(self._run_decodes, self._info.max_model_len)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Float32Array:
        logits = self._graphed.run_decodes(batch) if self._graphed else None
        if logits is None:
            self._backend.begin(batch)
            if not batch.num_tokens:
                return np.empty((0, self._info.vocab_size), np.float32)
            logits = _run_model(self._model, batch, _PagedStep(self._backend))[0]
        return cast(Float32Array, logits.float().cpu().numpy())

    def _run_decodes(self, token_ids: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return _call(self._model, token_ids, positions, wanted, _PagedStep(self._backend))

    def close(self) -> None:
        """Nothing to stop; memory goes with the runner."""


def _run_model(model: PreTrainedModel, batch: Batch, paged: _PagedStep | _Probe) -> torch.Tensor:
    """Logits [1, R, vocab_size]."""
    token_ids, positions, wanted = (
        torch.from_numpy(numbers.astype(np.int64)).to(model.device)
        for numbers in (batch.token_ids, batch.positions, batch.wanted)
    )
    return _call(model, token_ids, positions, wanted, paged)


def _call(
    model: PreTrainedModel, token_ids: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor,
    paged: _PagedStep | _Probe,
) -> torch.Tensor:  # fmt: skip
    output = model(
        input_ids=token_ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=wanted, paged=paged
    )
    return cast(torch.Tensor, output.logits)


@dataclass(slots=True)
class _PagedStep:
    """The model passes it down to every attention call of one forward; the calls count the layers."""

    backend: AttentionBackend
    num_calls: int = 0

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: AttentionRule) -> torch.Tensor:
        layer = self.num_calls
        self.num_calls += 1
        return self.backend.attend(layer, query, key, value, rule)


@dataclass(slots=True)
class _Probe:
    """Stands in for `_PagedStep` before serving and records what the attention calls look like."""

    shapes: list[tuple[int, int, int]] = field(default_factory=list)
    obstacles: list[str] = field(default_factory=list)
    has_softcap: bool = False

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: AttentionRule) -> torch.Tensor:
        self.shapes.append((query.shape[1], key.shape[1], key.shape[2]))
        self.has_softcap |= rule.softcap > 0
        if value.shape != key.shape:
            self.obstacles.append("its keys and values have different sizes")
        return query.new_zeros(*query.shape[:2], value.shape[2])


def _attend_paged(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged: _PagedStep | _Probe,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls for every layer: [1, heads, T, head_dim] in, [1, T, heads, head_dim] out."""
    if isinstance(paged, _Probe):
        paged.obstacles.extend(_obstacles(module, attention_mask, others))
    rule = AttentionRule(query.shape[-1] ** -0.5 if scaling is None else scaling, sliding_window or 0, softcap or 0.0)
    out = paged.attend(query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), rule)
    return out[None], None


def _obstacles(module: torch.nn.Module, attention_mask: torch.Tensor | None, others: dict[str, Any]) -> list[str]:
    found = [f"its attention takes {name}" for name in _UNSUPPORTED_INPUTS if others.get(name) is not None]
    if attention_mask is not None:
        found.append("it builds an attention mask or bias of its own")
    if not getattr(module, "is_causal", True):
        found.append("its attention is not causal")
    return found


@torch.inference_mode()
def probe(model: PreTrainedModel, name: str) -> AttentionShape:
    """Switch `model` to paged attention and run two tokens, to see that every layer really calls it.

    Raises ModelLoadError with the reason when it does not; a model that ignores the interface would answer nonsense.
    """
    recorder = _Probe()
    numbers = np.arange(2, dtype=np.int32)
    batch = Batch(
        numbers,
        numbers,
        numbers,
        np.array([0, 2], np.int32),
        np.array([2], np.int32),
        np.zeros((1, 1), np.int32),
        numbers,
    )
    try:
        model.set_attn_implementation(_ATTENTION_NAME)
        logits = _run_model(model, batch, recorder)
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        raise ModelLoadError(f"{name}: {type(model).__name__} cannot be served: {error}") from error
    num_layers = model.config.get_text_config().num_hidden_layers
    if len(recorder.shapes) != num_layers:
        reason = f"{len(recorder.shapes)} of its {num_layers} layers use transformers' attention interface"
        raise ModelLoadError(f"{name}: {type(model).__name__} cannot be served: {reason}")
    if len(set(recorder.shapes)) != 1:
        recorder.obstacles.append("its layers have heads of different numbers or sizes")
    if logits.shape[1] != 2:
        recorder.obstacles.append("it does not honour logits_to_keep")
    recorder.obstacles.extend(_rotary_obstacles(model.config.get_text_config()))
    if recorder.obstacles:
        raise ModelLoadError(f"{name}: {type(model).__name__} cannot be served: {recorder.obstacles[0]}")
    return AttentionShape(num_layers, *recorder.shapes[0], recorder.has_softcap)


def _rotary_obstacles(config: PretrainedConfig) -> list[str]:
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {part.get("rope_type") for part in [rope, *rope.values()] if isinstance(part, dict)}
    return [
        f"its rotary embedding ({kind}) changes with the longest sequence in a step"
        for kind in _CHANGING_ROTARY
        if kind in kinds
    ]


def _choose_backend(shape: AttentionShape, model: PreTrainedModel) -> AttentionBackend:
    if model.device.type == "cuda":
        return _cuda_backend(shape, model)
    if model.device.type != "cpu":
        return TorchPages(shape, model.device, model.dtype)
    from chatserve.models.pages import CpuPages  # numba is not needed elsewhere

    return CpuPages(shape)


def _cuda_backend(shape: AttentionShape, model: PreTrainedModel) -> AttentionBackend:
    """Our kernels, or plain torch for heads that they do not serve."""
    from chatserve.models.cuda_launcher import CudaLauncher

    launcher = CudaLauncher(model.device)  # the packages, the driver and the device are there
    from chatserve.models.cuda_kernel_set import is_supported
    from chatserve.models.cuda_pages import CudaPages

    if not is_supported(shape, str(model.dtype).removeprefix("torch.")):
        logger.warning("no CUDA kernels for heads of %d: attention runs on plain torch, slowly", shape.head_dim)
        return TorchPages(shape, model.device, model.dtype)
    num_processors = torch.cuda.get_device_properties(model.device).multi_processor_count
    return CudaPages(shape, model.device, model.dtype, launcher, num_processors)
