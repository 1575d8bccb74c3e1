"""Large linear layers are packed; what they compute stays the same."""

from __future__ import annotations

import pytest
import torch

from chatserve.models.packed_linear import PackedLinear, pack_linears

LARGE, SMALL = (1024, 640), (64, 48)


class _Scaled(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(1,), (3, 1), (1, 2), (1, 33), (2, 130)])
@torch.inference_mode()
def test_a_packed_layer_computes_what_the_layer_did(shape: tuple[int, ...], has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    linear = torch.nn.Linear(*LARGE, bias=has_bias)
    x = torch.randn(*shape, LARGE[0], generator=generator)
    expected = torch.nn.functional.linear(
        x.double(), linear.weight.double(), linear.bias.double() if has_bias else None
    )
    result = PackedLinear(linear)(x)
    assert result.dtype is torch.float32
    assert (result - expected).abs().max() < 1e-5


def test_only_large_plain_float32_layers_are_packed() -> None:
    model = torch.nn.ModuleDict(
        {
            "large": torch.nn.Linear(*LARGE),
            "small": torch.nn.Linear(*SMALL),
            "sixteen_bits": torch.nn.Linear(*LARGE, dtype=torch.bfloat16),
            "other": _Scaled(*LARGE),
            "inner": torch.nn.Sequential(torch.nn.Linear(*LARGE)),
        }
    )
    pack_linears(model)
    packed = [name for name, module in model.named_modules() if isinstance(module, PackedLinear)]
    assert packed == ["large", "inner.0"]


def test_an_embedding_keeps_the_weights_it_shares_with_the_head() -> None:
    model = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(*LARGE), "head": torch.nn.Linear(LARGE[1], LARGE[0])})
    model["head"].weight = model["embedding"].weight
    token_ids = torch.tensor([0, 7, 1023])
    before = model["embedding"](token_ids)
    pack_linears(model)
    assert torch.equal(model["embedding"](token_ids), before)
