"""`load_model`: from a configuration to a model ready to be given pages.

A model is named by the default model's name, a GGUF file, a folder in the Hugging Face layout, or a hub id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chatserve.config import DEFAULT_MODEL, Config
from chatserve.errors import ModelLoadError
from chatserve.models.cache_folder import cache_folder
from chatserve.models.default_model import fetch_default_model
from chatserve.models.runner import ModelInfo, Runner
from chatserve.models.threads import prepare_threads

if TYPE_CHECKING:
    from chatserve.models.converted import ConvertedModel
    from chatserve.text import Vocabulary
    from chatserve.text.chat_template import ChatTemplate

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with everything text needs; `runner.allocate` is still to be called."""

    runner: Runner
    vocabulary: Vocabulary
    chat_template: ChatTemplate | None

    @property
    def info(self) -> ModelInfo:
        return self.runner.info


def check_model_name(model: str) -> None:
    """Raise ModelLoadError when `model` cannot name a model: no file or folder, and not written as a hub id is."""
    if model != DEFAULT_MODEL and not Path(model).expanduser().exists() and not _HUB_ID.fullmatch(model):
        kinds = f"a hub id (owner/name) nor the default model ({DEFAULT_MODEL})"
        raise ModelLoadError(f"{model}: no such file or folder, and neither {kinds}")


def load_model(config: Config) -> LoadedModel:
    """Load the model that `config` names. Raises ModelLoadError, naming the model and the reason, when that fails."""
    check_model_name(config.model)
    path = Path(config.model).expanduser()
    is_default = config.model == DEFAULT_MODEL
    prepare_threads()  # before the modules below import torch
    name = config.served_model_name or _model_name(config.model)
    if is_default or path.is_file():
        from chatserve.models.cpu.loading import load_gguf_for_cpu

        path = fetch_default_model(cache_folder()) if is_default else path
        if loaded := load_gguf_for_cpu(path, name, config):
            return loaded
    from chatserve.models.folder_model import download_hub_model, load_folder
    from chatserve.models.gguf_loading import load_gguf
    from chatserve.models.placement import choose_placement

    placement = choose_placement(config)
    if path.is_file():
        return load_gguf(path, name, placement)
    folder = path if path.is_dir() else download_hub_model(config.model)
    return load_folder(folder, name, placement, config)


def with_text(runner: Runner, converted: ConvertedModel) -> LoadedModel:
    """A runner for a GGUF file with the vocabulary and the chat template of its conversion."""
    from chatserve.text import Vocabulary
    from chatserve.text.chat_template import ChatTemplate

    vocabulary = Vocabulary(
        converted.tokenizer,
        size=runner.info.vocab_size,
        end_token_ids=converted.end_token_ids,
        bos_token_id=converted.bos_token_id,
    )
    template = converted.chat_template
    if template is None:
        return LoadedModel(runner, vocabulary, None)
    bos_token, eos_token = converted.bos_token, converted.eos_token
    return LoadedModel(runner, vocabulary, ChatTemplate(template, bos_token=bos_token, eos_token=eos_token))


def _model_name(model: str) -> str:
    """The id that clients use: a file or folder goes by its last name without ``.gguf``."""
    path = Path(model).expanduser()
    return path.resolve().name.removesuffix(".gguf") if path.exists() else model
