"""Converted GGUF models: weights, tokenizer and config written once to the cache folder, memory-mapped afterwards.

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
from chatserve.models.gguf_model import read_config, read_weights
from chatserve.models.gguf_tokenizer import build_tokenizer

_VERSION = 1
_HASHED_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ConvertedModel:
    """An opened conversion.

    Attributes:
        config: keyword arguments of the transformers config class, `model_type` included.
        weights_path: safetensors file with float32 weights under their transformers names.
        tokenizer: byte-level BPE tokenizer, adds no begin token.
        chat_template: Jinja source, or None.
        end_token_ids: tokens that end an answer.
        bos_token, eos_token: texts of the begin and end tokens, "" when there is none.
        bos_token_id: begin token to put before a plain prompt, None when the file says not to.
    """

    config: dict[str, Any]
    weights_path: Path
    tokenizer: Tokenizer
    chat_template: str | None
    end_token_ids: tuple[int, ...]
    bos_token: str
    eos_token: str
    bos_token_id: int | None


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
    return ConvertedModel(
        weights_path=folder / "weights.safetensors", tokenizer=tokenizer, end_token_ids=end_token_ids, **facts
    )


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
    weights = dict(read_weights(gguf, config))
    with scratch_folder(folder.parent) as scratch:
        try:
            save_file(weights, scratch / "weights.safetensors")
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"cannot write the converted model to {folder.parent}: {error}") from error
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
