"""`load_model`: every way to name a model, and what is said when one cannot be loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from chatserve.config import Config
from chatserve.errors import ModelLoadError
from chatserve.models.loading import load_model
from tests.models.gguf_files import CHAT_TEMPLATE, TOKENS, write_gguf
from tests.models.paging import Paged, Pager
from tests.models.tiny_models import VOCAB_SIZE, stock_logits, tiny_model

PROMPT = [1, 9, 33, 70, 2, 5]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHATSERVE_CACHE", str(tmp_path / "cache"))


def logits_of(loaded: Any) -> Any:
    loaded.runner.allocate(8, 4)
    return loaded.runner.forward(Pager(8, 4, np.random.default_rng(0)).batch([(Paged(PROMPT), len(PROMPT))]))


def save_folder(folder: Path, family: str = "qwen2") -> Path:
    tiny_model(family).save_pretrained(folder)
    tokens = [f"<{i}>" for i in range(VOCAB_SIZE - 26)] + [chr(97 + i) for i in range(26)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<1>", "<2>", "<3>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<1>", "eos_token": "<3>", "chat_template": CHAT_TEMPLATE}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def refusal(model: str, **settings: Any) -> str:
    with pytest.raises(ModelLoadError) as caught:
        load_model(Config(model=model, **settings))
    assert str(caught.value).startswith(f"{model}: ")
    return str(caught.value)


def test_folder(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "tiny-qwen")
    loaded = load_model(Config(model=str(folder), device="cpu"))
    assert loaded.info.name == "tiny-qwen"
    np.testing.assert_allclose(logits_of(loaded), stock_logits(tiny_model("qwen2"), PROMPT), rtol=0, atol=1e-4)
    assert loaded.vocabulary.encode("ab<3>") == [VOCAB_SIZE - 26, VOCAB_SIZE - 25, 3]
    assert loaded.vocabulary.end_token_ids == (2, 3)  # the generation config's and the tokenizer's
    assert loaded.chat_template is not None
    assert loaded.chat_template.render([{"role": "user", "content": "x"}]) == "<1>x<3>"


def test_gguf_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.Q8.gguf")
    loaded = load_model(Config(model=str(path), device="cpu", served_model_name="mine"))
    assert loaded.info.name == "mine"
    assert loaded.info.vocab_size == len(TOKENS)
    assert loaded.info.max_model_len == 128
    assert load_model(Config(model=str(path), device="cpu")).info.name == "tiny.Q8"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtype(tmp_path: Path, dtype: Any) -> None:
    folder = save_folder(tmp_path / "tiny")
    for path in (folder, write_gguf(tmp_path / "tiny.gguf")):
        loaded = load_model(Config(model=str(path), device="cpu", dtype=dtype))
        assert loaded.info.description.endswith(f"2 layers, {dtype}, cpu")
        assert loaded.info.kv_bytes_per_token % 4 == 0  # pages on the CPU are float32
    exact = stock_logits(tiny_model("qwen2"), PROMPT)
    rounded = logits_of(load_model(Config(model=str(folder), device="cpu", dtype=dtype)))
    assert 0 < np.abs(rounded - exact).max() < 0.05 * np.abs(exact).max()


def test_weights_missing_from_a_folder(tmp_path: Path) -> None:
    """Transformers would fill them with random numbers."""
    from safetensors.torch import load_file, save_file

    folder = save_folder(tmp_path / "tiny")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"weight model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        load_model(Config(model=str(folder), device="cpu"))


def test_folder_without_a_model(tmp_path: Path) -> None:
    refusal(str(tmp_path))


def test_folder_without_weights(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "tiny")
    (folder / "model.safetensors").unlink()
    assert "cannot load the model" in refusal(str(folder))


def test_hub_that_cannot_be_reached() -> None:
    assert "cannot download it from the hub" in refusal("nobody/nothing")


def test_nothing_by_that_name() -> None:
    message = refusal("no-such-model")
    assert "no such file or folder, and neither a hub id (owner/name) nor the default model" in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_cuda_that_is_not_there(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    assert "cannot run on cuda: " in refusal(str(path), device="cuda")
