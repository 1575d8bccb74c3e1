"""Load a model from a folder in the Hugging Face layout, or from the hub by way of such a folder."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import PreTrainedModel

from chatserve.config import Config
from chatserve.errors import ModelLoadError
from chatserve.models.cpu.loading import load_transformers_for_cpu
from chatserve.models.loading import LoadedModel
from chatserve.models.placement import Placement
from chatserve.models.transformers_runner import TransformersRunner
from chatserve.text import Vocabulary
from chatserve.text.chat_template import ChatTemplate

logger = logging.getLogger(__name__)

_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
_HUB_TIMEOUT_SECONDS = 5.0
_LOAD_ERRORS = (OSError, ValueError, RuntimeError, KeyError, ImportError, AttributeError, SafetensorError)
"""What transformers raises for folders it cannot load."""


def download_hub_model(hub_id: str) -> Path:
    """The folder of a hub model in huggingface_hub's cache, downloaded when it is not there.

    Raises ModelLoadError, within seconds when the hub cannot be reached, naming the id and the reason.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=_HUB_FILES, etag_timeout=_HUB_TIMEOUT_SECONDS))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise ModelLoadError(f"{hub_id}: cannot download it from the hub: {_root_cause(error)}") from error


def load_folder(folder: Path, name: str, placement: Placement, config: Config) -> LoadedModel:
    """Load the model in `folder`, for the CPU runner when ``config.weights`` names a kind.

    Raises ModelLoadError when files or weights are missing or it cannot be served.
    """
    tokenizer = _load_tokenizer(folder)
    model = _load_weights(folder, placement)
    is_for_cpu = config.weights != "auto"
    runner = load_transformers_for_cpu(model, name, config) if is_for_cpu else TransformersRunner(model, name)
    end_token_ids = _end_token_ids(model, tokenizer)
    vocabulary = Vocabulary(tokenizer.backend_tokenizer, size=runner.info.vocab_size, end_token_ids=end_token_ids)
    template = tokenizer.chat_template
    if isinstance(template, dict):  # several named templates
        template = template.get("default")
    if template is None:
        return LoadedModel(runner, vocabulary, None)
    bos_token, eos_token = tokenizer.bos_token or "", tokenizer.eos_token or ""
    return LoadedModel(runner, vocabulary, ChatTemplate(template, bos_token=bos_token, eos_token=eos_token))


def _load_weights(folder: Path, placement: Placement) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    from_pretrained: Any = AutoModelForCausalLM.from_pretrained
    try:
        model, report = from_pretrained(folder, dtype=placement.dtype, local_files_only=True, output_loading_info=True)
    except _LOAD_ERRORS as error:
        raise ModelLoadError(f"{folder}: cannot load the model: {_first_line(error)}") from error
    if missing := sorted(report["missing_keys"]):  # transformers would go on with random numbers
        raise ModelLoadError(f"{folder}: weight {missing[0]} is missing ({len(missing)} in all)")
    if left_over := sorted(report["unexpected_keys"]):
        logger.warning("%s: weight %s is not used (%d in all)", folder, left_over[0], len(left_over))
    loaded: PreTrainedModel = model.to(placement.device).eval().requires_grad_(False)
    return loaded


def _load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except _LOAD_ERRORS as error:
        raise ModelLoadError(f"{folder}: cannot load the tokenizer: {_first_line(error)}") from error
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ModelLoadError(f"{folder}: its tokenizer, {type(tokenizer).__name__}, has no fast version")
    return tokenizer


def _end_token_ids(model: PreTrainedModel, tokenizer: Any) -> tuple[int, ...]:
    """All tokens that end an answer: the generation config may name several, the tokenizer knows one."""
    named: Any = model.generation_config.eos_token_id if model.generation_config else None
    ids = set(named) if isinstance(named, list) else {named}
    return tuple(sorted((ids | {tokenizer.eos_token_id}) - {None}))


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return _first_line(error)
