"""GGUF files: the same model as transformers makes of them, and a clear refusal of every damaged one (case j5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType as Kind

from chatserve.errors import ModelLoadError
from chatserve.models.converted import open_converted
from chatserve.models.gguf_loading import build_model
from chatserve.models.placement import Placement
from tests.models.gguf_files import CHAT_TEMPLATE, HEAD_DIM, TOKENS, tensors_of, write_gguf
from tests.models.tiny_models import stock_logits

CPU = Placement(torch.device("cpu"), torch.float32)
PROMPT = [1, 5, 9, 30, 2, 0, 17, 17, 4]


def logits_of(path: Path, cache: Path) -> Any:
    return stock_logits(build_model(open_converted(path, cache), CPU), PROMPT)


def transformers_logits(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    from_pretrained: Any = AutoModelForCausalLM.from_pretrained
    model = from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return stock_logits(model.eval().requires_grad_(False), PROMPT)


@pytest.mark.parametrize(("architecture", "head_dim"), [("llama", HEAD_DIM), ("qwen2", HEAD_DIM), ("qwen3", 128)])
def test_architectures_equal_transformers(architecture: str, head_dim: int, tmp_path: Path) -> None:
    """Transformers does not read the head size of a qwen3 file and takes it to be 128."""
    tensors = tensors_of(architecture, head_dim=head_dim)
    path = write_gguf(tmp_path / "model.gguf", architecture, tensors, head_dim=head_dim)
    expected = transformers_logits(path)
    np.testing.assert_allclose(logits_of(path, tmp_path / "cache"), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1])
def test_types_equal_transformers(kind: Kind, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", kind=kind)
    expected = transformers_logits(path)
    np.testing.assert_allclose(logits_of(path, tmp_path / "cache"), expected, rtol=0, atol=1e-5)


def test_a_head_of_its_own(tmp_path: Path) -> None:
    tensors = tensors_of("llama")
    tied = logits_of(write_gguf(tmp_path / "tied.gguf", tensors=tensors), tmp_path / "cache")
    tensors["output.weight"] = -tensors["token_embd.weight"]
    untied = logits_of(write_gguf(tmp_path / "untied.gguf", tensors=tensors), tmp_path / "cache")
    np.testing.assert_allclose(untied, -tied, rtol=0, atol=1e-6)


def test_rotary_factors_divide_the_frequencies(tmp_path: Path) -> None:
    """Llama 3.1 and later: the file carries a divisor for each frequency."""
    tensors = tensors_of("llama")
    plain = build_model(open_converted(write_gguf(tmp_path / "plain.gguf", tensors=tensors), tmp_path), CPU)
    tensors["rope_freqs.weight"] = np.arange(1, HEAD_DIM // 2 + 1, dtype=np.float32)
    scaled = build_model(open_converted(write_gguf(tmp_path / "scaled.gguf", tensors=tensors), tmp_path), CPU)
    frequencies: Any = plain.model.rotary_emb.inv_freq
    divided: Any = scaled.model.rotary_emb.inv_freq
    torch.testing.assert_close(divided * torch.arange(1.0, HEAD_DIM // 2 + 1), frequencies)


def test_sliding_window_makes_it_a_mistral(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", metadata={"llama.attention.sliding_window": 64})
    model = build_model(open_converted(path, tmp_path), CPU)
    assert type(model).__name__ == "MistralForCausalLM"
    assert model.config.sliding_window == 64


def test_facts_of_the_vocabulary(tmp_path: Path) -> None:
    converted = open_converted(write_gguf(tmp_path / "model.gguf"), tmp_path / "cache")
    assert converted.tokenizer.encode("abc 12<|end|>").ids == [
        TOKENS.index(t) for t in ("ab", "c", "Ġ", "1", "2", "<|end|>")
    ]
    assert converted.end_token_ids == (0,)
    assert (converted.bos_token, converted.eos_token) == ("<|user|>", "<|end|>")
    assert converted.bos_token_id is None  # the file does not ask for it
    assert converted.chat_template == CHAT_TEMPLATE


class TestConversion:
    def test_a_second_start_reads_the_conversion(self, tmp_path: Path) -> None:
        path, cache = write_gguf(tmp_path / "model.gguf"), tmp_path / "cache"
        first = open_converted(path, cache)
        written = first.float32_weights().stat().st_mtime_ns
        second = open_converted(path, cache)
        assert second.float32_weights() == first.float32_weights()
        assert second.float32_weights().stat().st_mtime_ns == written
        assert second.config == first.config
        assert [entry.name for entry in cache.iterdir()] == [first.folder.name]

    def test_weights_are_written_only_for_a_runner_that_reads_them(self, tmp_path: Path) -> None:
        converted = open_converted(write_gguf(tmp_path / "model.gguf"), tmp_path / "cache")
        assert not list(converted.folder.glob("*.safetensors"))
        converted.float32_weights()
        assert len(list(converted.folder.glob("*.safetensors"))) == 1

    def test_a_changed_file_is_converted_again(self, tmp_path: Path) -> None:
        path, cache = write_gguf(tmp_path / "model.gguf"), tmp_path / "cache"
        before = logits_of(path, cache)
        write_gguf(path, tensors=tensors_of("llama", seed=1))
        assert np.abs(logits_of(path, cache) - before).max() > 0.1

    def test_a_damaged_conversion_names_the_folder(self, tmp_path: Path) -> None:
        path, cache = write_gguf(tmp_path / "model.gguf"), tmp_path / "cache"
        folder = open_converted(path, cache).folder
        (folder / "tokenizer.json").write_text("{")
        with pytest.raises(ModelLoadError, match=f"{folder.name} is damaged .* delete that folder"):
            open_converted(path, cache)

    def test_a_cache_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ModelLoadError, match="cannot write the cache folder .*CHATSERVE_CACHE"):
            open_converted(write_gguf(tmp_path / "model.gguf"), tmp_path / "file" / "cache")


class TestDamage:
    """Whatever is wrong with the tensors stops the load and names one; nothing is left in the cache."""

    def refusal(self, path: Path) -> str:
        cache = path.parent / "cache"
        with pytest.raises(ModelLoadError) as caught:
            open_converted(path, cache)
        assert not cache.exists() or not list(cache.iterdir())
        assert str(path) in str(caught.value)
        return str(caught.value)

    def edited(self, tmp_path: Path, **changes: Any) -> Path:
        tensors = tensors_of("llama")
        for name, replacement in changes.items():
            del tensors[name]
            if replacement is not None:
                new_name, values = replacement
                tensors[new_name] = values
        return write_gguf(tmp_path / "model.gguf", tensors=tensors)

    def test_missing(self, tmp_path: Path) -> None:
        path = self.edited(tmp_path, **{"blk.1.ffn_up.weight": None})
        assert "tensor blk.1.ffn_up.weight is missing" in self.refusal(path)

    def test_renamed(self, tmp_path: Path) -> None:
        values = tensors_of("llama")["blk.0.attn_q.weight"]
        path = self.edited(tmp_path, **{"blk.0.attn_q.weight": ("blk.0.attn_qq.weight", values)})
        assert "tensor blk.0.attn_q.weight is missing" in self.refusal(path)

    def test_left_over(self, tmp_path: Path) -> None:
        tensors = tensors_of("llama")
        tensors["blk.0.attn_q.bias"] = np.zeros(64, np.float32)
        path = write_gguf(tmp_path / "model.gguf", tensors=tensors)
        assert "tensor blk.0.attn_q.bias is left over" in self.refusal(path)

    def test_misshaped(self, tmp_path: Path) -> None:
        name = "blk.1.ffn_down.weight"
        path = self.edited(tmp_path, **{name: (name, np.zeros((96, 64), np.float32))})
        assert f"tensor {name} has shape [96, 64], expected [64, 96]" in self.refusal(path)

    @pytest.mark.parametrize("share", [0.5, 0.9, 0.999])
    def test_truncated_tensors(self, tmp_path: Path, share: float) -> None:
        path = write_gguf(tmp_path / "model.gguf")
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])
        message = self.refusal(path)
        assert "is truncated: tensor " in message
        assert message.split("tensor ")[1].split(" ")[0] in tensors_of("llama")

    @pytest.mark.parametrize("length", [0, 3, 10, 50, 1000])
    def test_truncated_header(self, tmp_path: Path, length: int) -> None:
        path = write_gguf(tmp_path / "model.gguf")
        path.write_bytes(path.read_bytes()[:length])
        message = self.refusal(path)
        assert "is truncated" in message or length == 0

    def test_not_gguf(self, tmp_path: Path) -> None:
        path = tmp_path / "model.gguf"
        path.write_bytes(b"PK\x03\x04" + bytes(1000))
        assert "is not a GGUF file" in self.refusal(path)

    def test_unknown_architecture(self, tmp_path: Path) -> None:
        path = write_gguf(tmp_path / "model.gguf", "rwkv7")
        assert "architecture 'rwkv7' is not supported; supported: llama, qwen2, qwen3" in self.refusal(path)

    def test_unknown_pre_tokenizer(self, tmp_path: Path) -> None:
        path = write_gguf(tmp_path / "model.gguf")
        data = path.read_bytes()
        path.write_bytes(data.replace(b"smollm", b"smelly", 1))
        assert "pre-tokenizer 'smelly' is not supported" in self.refusal(path)

    def test_rotary_scaling(self, tmp_path: Path) -> None:
        path = write_gguf(tmp_path / "model.gguf", metadata={"llama.rope.scaling.type": "yarn"})
        assert "rotary scaling 'yarn' is not supported" in self.refusal(path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rotary_tables_in_half_precision_models(dtype: torch.dtype, tmp_path: Path) -> None:
    """Case g5: angles are computed in float32 or better, whatever the type of the weights."""
    path = write_gguf(tmp_path / "model.gguf", metadata={"llama.rope.dimension_count": HEAD_DIM})
    model: Any = build_model(open_converted(path, tmp_path), Placement(torch.device("cpu"), dtype))
    assert model.dtype == dtype
    positions = torch.arange(8192)[None]
    cos, sin = model.model.rotary_emb(torch.zeros(1, dtype=torch.float32), position_ids=positions)
    frequencies = 5000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = np.arange(8192)[:, None] * np.concatenate([frequencies, frequencies])
    np.testing.assert_allclose(cos[0].numpy(), np.cos(angles), rtol=0, atol=1e-3)
    np.testing.assert_allclose(sin[0].numpy(), np.sin(angles), rtol=0, atol=1e-3)
