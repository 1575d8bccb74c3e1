"""Converted GGUF models: tokenizer, config and, where a runner needs them, float32 weights, written once to the cache
folder and memory-mapped afterwards.

Dequantising takes seconds and parsing a vocabulary half a second; opening a conversion takes milliseconds. A
conversion is keyed by the file's size, modification time and header, and by the version of this code, so a stale one
is never opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from chatserve.errors import ModelLoadError
from chatserve.models.cache_folder import scratch_folder
from chatserve.models.gguf_file import GgufFile
from chatserve.models.gguf_model import check_tensors, read_config, read_weights
from chatserve.models.gguf_tokenizer import build_tokenizer

_VERSION = 2
_HASHED_BYTES = 1 << 16
_WEIGHTS = "weights.safetensors"


@dataclass(frozen=True, slots=True)
class ConvertedModel:
    """An opened conversion.

    Attributes:
        source: the GGUF file.
        folder: where the conversion is; other forms of the same weights may be kept there.
        config: keyword arguments of the transformers config class, `model_type` included.
        tokenizer: byte-level BPE tokenizer, adds no begin token.
        chat_template: Jinja source, or None.
        end_token_ids: tokens that end an answer.
        bos_token, eos_token: texts of the begin and end tokens, "" when there is none.
        bos_token_id: begin token to put before a plain prompt, None when the file says not to.
    """

    source: Path
    folder: Path
    config: dict[str, Any]
    tokenizer: Tokenizer
    chat_template: str | None
    end_token_ids: tuple[int, ...]
    bos_token: str
    eos_token: str
    bos_token_id: int | None

    def float32_weights(self) -> Path:
        """The safetensors file with the weights under their transformers names; written at the first call.

        Raises ModelLoadError when the GGUF file cannot be read or the file cannot be written.
        """
        path = self.folder / _WEIGHTS
        if not path.is_file():
            weights = dict(read_weights(GgufFile(self.source), self.config))
            with scratch_folder(self.folder) as scratch:
                try:
                    save_file(weights, scratch / _WEIGHTS)
                    os.replace(scratch / _WEIGHTS, path)
                except (OSError, SafetensorError) as error:
                    raise ModelLoadError(f"cannot write the converted weights to {self.folder}: {error}") from error
        return path


def open_converted(path: Path, cache_dir: Path) -> ConvertedModel:
    """Open the conversion of the GGUF file at `path`, converting it first when `cache_dir` has none.

    Raises ModelLoadError when the file cannot be read, is incomplete or is not supported.
    """
    folder = cache_dir / f"converted-{_key(path)}"
    if not folder.is_dir():
        _convert(GgufFile(path), folder)
    try:
        facts = json.loads((folder / "facts.json").read_text("utf-8"))
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelLoadError(f"the converted model {folder} is damaged ({error}); delete that folder") from error
    end_token_ids = tuple(facts.pop("end_token_ids"))
    return ConvertedModel(source=path, folder=folder, tokenizer=tokenizer, end_token_ids=end_token_ids, **facts)


def _key(path: Path) -> str:
    try:
        with path.open("rb") as file:
            head, stat = file.read(_HASHED_BYTES), os.fstat(file.fileno())
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror}") from error
    facts = f"{_VERSION} {stat.st_size} {stat.st_mtime_ns} ".encode()
    return hashlib.sha256(facts + head).hexdigest()[:24]


def _convert(gguf: GgufFile, folder: Path) -> None:
    config, tokenizer = read_config(gguf), build_tokenizer(gguf)
    check_tensors(gguf, config)
    with scratch_folder(folder.parent) as scratch:
        tokenizer.save(str(scratch / "tokenizer.json"))
        (scratch / "facts.json").write_text(json.dumps(_facts(gguf, config)), "utf-8")
        with contextlib.suppress(OSError):  # another process has just published the same conversion
            scratch.rename(folder)


def _facts(gguf: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    metadata = gguf.metadata
    bos_id, eos_id = metadata.get("tokenizer.ggml.bos_token_id"), metadata.get("tokenizer.ggml.eos_token_id")
    end_ids = {eos_id, metadata.get("tokenizer.ggml.eot_token_id")} - {None}
    tokens = metadata["tokenizer.ggml.tokens"]
    return {
        "config": config,
        "chat_template": metadata.get("tokenizer.chat_template"),
        "end_token_ids": sorted(end_ids),
        "bos_token": "" if bos_id is None else tokens[bos_id],
        "eos_token": "" if eos_id is None else tokens[eos_id],
        "bos_token_id": bos_id if metadata.get("tokenizer.ggml.add_bos_token") else None,
    }
