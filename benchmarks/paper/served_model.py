"""`ServedModel`: a model on the server the paper ran it on (its Table 1), as numbers."""

from __future__ import annotations

from dataclasses import dataclass

_GIB = 1 << 30
_USABLE_BANDWIDTH = 1.3 / 1.555  # of the data sheet's; what large reads reach
_USABLE_FLOPS = 0.5  # of 312 TFLOPS; what large half-precision products reach


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Sizes and speeds; several GPUs count as one with the sum of theirs, their communication as free.

    Attributes:
        name: as the paper calls it.
        num_parameters: of the model.
        num_layers, hidden_size: they fix the KV bytes of a token (two vectors a layer, 2 bytes an element).
        kv_memory: bytes for KV over all GPUs.
        bandwidth: bytes a second that all GPUs read together.
        flops: floating-point operations a second of all GPUs together.
        trace_seconds: how long the paper's traces for this model were.
        max_len: longest sequence, in tokens.
    """

    name: str
    num_parameters: float
    num_layers: int
    hidden_size: int
    kv_memory: int
    bandwidth: float
    flops: float
    trace_seconds: float = 3600.0
    max_len: int = 2048

    @property
    def weight_bytes(self) -> float:
        return 2 * self.num_parameters

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.hidden_size * 2

    @property
    def num_slots(self) -> int:
        """Tokens whose KV fits into the memory."""
        return self.kv_memory // self.kv_bytes_per_token


def _on_a100(
    name: str, billions: float, num_layers: int, hidden_size: int, kv_gib: int, num_gpus: int, sheet_bandwidth: float
) -> ServedModel:
    return ServedModel(
        name=name,
        num_parameters=billions * 1e9,
        num_layers=num_layers,
        hidden_size=hidden_size,
        kv_memory=kv_gib * _GIB,
        bandwidth=num_gpus * sheet_bandwidth * _USABLE_BANDWIDTH,
        flops=num_gpus * 312e12 * _USABLE_FLOPS,
        trace_seconds=900.0 if num_gpus == 8 else 3600.0,
    )


OPT_13B = _on_a100("OPT-13B", 13, 40, 5120, 12, 1, 1.555e12)
OPT_66B = _on_a100("OPT-66B", 66, 64, 9216, 21, 4, 1.555e12)
OPT_175B = _on_a100("OPT-175B", 175, 96, 12288, 264, 8, 2.039e12)
LLAMA_13B = _on_a100("LLaMA-13B", 13, 40, 5120, 12, 1, 1.555e12)

MODELS = {model.name: model for model in (OPT_13B, OPT_66B, OPT_175B, LLAMA_13B)}
