"""`load_model`: from a configuration to a model ready to be given pages.

A model is named by the default model's name, a GGUF file, a folder in the Hugging Face layout, or a hub id.
"""

from __future__ import annotations

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
    from chatserve.text.chat_template import ChatTemplate
    from chatserve.text.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with everything text needs; `runner.allocate` is still to be called."""

    runner: Runner
    vocabulary: Vocabulary
    chat_template: ChatTemplate | None

    @property
    def info(self) -> ModelInfo:
        return self.runner.info


def load_model(config: Config) -> LoadedModel:
    """Load the model that `config` names. Raises ModelLoadError, naming the model and the reason, when that fails."""
    prepare_threads()
    name = config.served_model_name or model_name(config.model)
    if config.model == DEFAULT_MODEL:
        return _load_gguf(fetch_default_model(cache_folder()), config, name)
    path = Path(config.model).expanduser()
    if path.is_file():
        return _load_gguf(path, config, name)
    raise ModelLoadError(f"{config.model}: no such file")


def model_name(model: str) -> str:
    """The id that clients use for a model given as `model`: a file or folder goes by its last name without ``.gguf``."""
    path = Path(model).expanduser()
    return path.name.removesuffix(".gguf") if path.exists() else model


def _load_gguf(path: Path, config: Config, name: str) -> LoadedModel:
    from chatserve.models.gguf_loading import load_gguf_model
    from chatserve.models.converted import open_converted
    from chatserve.models.transformers_runner import TransformersRunner
    from chatserve.text.chat_template import ChatTemplate
    from chatserve.text.vocabulary import Vocabulary

    converted = open_converted(path, cache_folder())
    runner = TransformersRunner(load_gguf_model(converted), name)
    vocabulary = Vocabulary(
        converted.tokenizer,
        size=runner.info.vocab_size,
        end_token_ids=converted.end_token_ids,
        bos_token_id=converted.bos_token_id,
    )
    template = None
    if converted.chat_template is not None:
        template = ChatTemplate(converted.chat_template, bos_token=converted.bos_token, eos_token=converted.eos_token)
    return LoadedModel(runner, vocabulary, template)
