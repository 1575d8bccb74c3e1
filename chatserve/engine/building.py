"""`build_engine`: from a configuration to a model with an engine on it, sized by the memory there is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from chatserve.config import Config
from chatserve.decoding.registry import Registry
from chatserve.engine import sampler
from chatserve.engine.engine import Engine
from chatserve.engine.request_factory import EngineLimits
from chatserve.errors import ConfigError, RequestError
from chatserve.models.loading import LoadedModel, load_model
from chatserve.models.page_memory import page_memory
from chatserve.models.runner import ModelInfo, Runner

_GIB = 1 << 30


def build_engine(config: Config) -> tuple[LoadedModel, Engine]:
    """Load the model and its decoders and allocate the pool. Raises ModelLoadError or ConfigError."""
    _check_block_size(config.block_size)
    prefixes = [_read_prefix(given) for given in config.prefixes]
    registry = Registry.load(config.decoders, strict=config.strict_plugins)
    loaded = load_model(config)
    runner = _limited(loaded.runner, config.max_model_len)
    _check_pool_memory(runner.info, config)
    num_blocks = config.num_blocks or num_blocks_for(runner.info, config)
    limits = EngineLimits(
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_batch_tokens=config.max_batch_tokens,
        max_prefill_tokens=config.max_prefill_tokens or _max_prefill_tokens(runner.info),
        max_running_sequences=config.max_running_sequences,
        max_sequences=config.max_sequences,
        prefix_caching=config.prefix_caching,
        decoder_timeout=config.decoder_timeout,
        num_host_blocks=min(
            num_blocks, int(config.swap_space * _GIB) // (runner.info.kv_bytes_per_token * config.block_size)
        ),
        preemption=config.preemption,
        policy=config.policy,
    )
    engine = Engine(runner, loaded.vocabulary, registry, limits)
    sampler.warm_up(runner.info.vocab_size)
    for prefix in prefixes:
        _register_prefix(engine, loaded, prefix)
    return loaded, engine


def _max_prefill_tokens(info: ModelInfo) -> int | None:
    """On a CPU a step takes as long as it has tokens, and chunks of 128 are read about as fast as longer ones."""
    return 128 if info.device == "cpu" else None


class _Prefix(NamedTuple):
    """A prefix of the configuration, read; `messages` when its file ends in ``.json``."""

    given: str
    name: str
    content: str
    messages: list[dict[str, Any]] | None


def _read_prefix(given: str) -> _Prefix:
    """Read NAME=FILE. Raises ConfigError."""
    name, _, file = given.partition("=")
    if not name or not file:
        raise ConfigError(f"prefixes: {given!r} is not of the form NAME=FILE")
    try:
        content = Path(file).read_text(encoding="utf-8")
        return _Prefix(given, name, content, json.loads(content) if file.endswith(".json") else None)
    except (OSError, ValueError) as error:
        raise ConfigError(f"prefixes: {given!r} cannot be registered: {error}") from error


def _register_prefix(engine: Engine, loaded: LoadedModel, prefix: _Prefix) -> None:
    """Compute a prefix. Raises ConfigError when it cannot be."""
    try:
        if prefix.messages is not None and loaded.chat_template is not None:
            rendered = loaded.chat_template.render(prefix.messages, add_generation_prompt=False)
            token_ids = loaded.vocabulary.encode(rendered)
        else:
            token_ids = loaded.vocabulary.encode(prefix.content, add_special_tokens=True)
        request = engine.register_prefix(prefix.name, tuple(token_ids), lambda news: None, prefix.messages)
    except (ValueError, RequestError) as error:
        raise ConfigError(f"prefixes: {prefix.given!r} cannot be registered: {error}") from error
    while not request.is_finished:
        engine.step()


def num_blocks_for(info: ModelInfo, config: Config) -> int:
    """Blocks that fit `kv_memory`, or else the default of `page_memory`, at most what all sequences can fill."""
    block_bytes = info.kv_bytes_per_token * config.block_size
    if config.kv_memory is not None:
        num_blocks = int(config.kv_memory * _GIB) // block_bytes
        if num_blocks < 1:
            raise ConfigError(f"kv_memory: {config.kv_memory} GiB hold no block of {block_bytes} bytes")
        return num_blocks
    useful = -(-info.max_model_len // config.block_size) * config.max_running_sequences
    return max(1, min(page_memory(info.device).default // block_bytes, useful))


def _check_pool_memory(info: ModelInfo, config: Config) -> None:
    """Refuse a pool that is larger than the memory where it shall lie, before anything is allocated."""
    size = (config.num_blocks or 0) * config.block_size * info.kv_bytes_per_token
    memory = page_memory(info.device).total
    if size > memory:
        raise ConfigError(
            f"num_blocks: {config.num_blocks} blocks take {size / _GIB:.0f} GiB, there are {memory / _GIB:.0f}"
        )


def _check_block_size(block_size: int) -> None:
    if block_size not in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        raise ConfigError(f"block_size: is {block_size}, must be a power of two from 1 to 256")


def _limited(runner: Runner, max_model_len: int | None) -> Runner:
    """The runner, telling the configured context length instead of the model's own."""
    if max_model_len is None:
        return runner
    if max_model_len > runner.info.max_model_len:
        raise ConfigError(f"max_model_len: is {max_model_len}, the model's context is {runner.info.max_model_len}")
    return _ShorterContext(runner, max_model_len)


class _ShorterContext:
    """A runner with a shorter context than the model's."""

    def __init__(self, runner: Runner, max_model_len: int) -> None:
        self.info = replace(runner.info, max_model_len=max_model_len)
        self.allocate = runner.allocate
        self.forward = runner.forward
        self.close = runner.close
