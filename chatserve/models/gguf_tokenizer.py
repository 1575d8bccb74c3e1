"""Build a `tokenizers.Tokenizer` from the vocabulary, merges and pre-tokenizer name in a GGUF file."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from chatserve.errors import ModelLoadError
from chatserve.models.gguf_file import GgufFile

_CONTROL, _USER_DEFINED = 3, 4
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_SPLITS = {"llama-bpe": _LLAMA3_SPLIT, "llama3": _LLAMA3_SPLIT, "llama-v3": _LLAMA3_SPLIT, "qwen2": _QWEN2_SPLIT}
_DIGIT_BY_DIGIT = ("smollm", "starcoder", "refact", "command-r")
_PLAIN = ("gpt-2", "default")


def build_tokenizer(gguf: GgufFile) -> Tokenizer:
    """The byte-level BPE tokenizer that the file describes; it adds no begin token by itself.

    Raises ModelLoadError, naming what is unsupported, for another kind of tokenizer or an unknown pre-tokenizer:
    guessing would give other ids than the model was trained on.
    """
    metadata = gguf.metadata
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2" or "tokenizer.ggml.merges" not in metadata:
        raise ModelLoadError(
            f"{gguf.path}: tokenizer {kind!r} is not supported in GGUF files; supported: byte-level BPE ('gpt2')"
        )
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(gguf)
    tokenizer.decoder = decoders.ByteLevel()
    _add_whole_tokens(tokenizer, tokens, metadata.get("tokenizer.ggml.token_type", ()))
    return tokenizer


def _pre_tokenizer(gguf: GgufFile) -> Any:
    name = gguf.metadata.get("tokenizer.ggml.pre", "default")
    if name in _PLAIN:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in _DIGIT_BY_DIGIT:
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    if name in _SPLITS:
        split = pre_tokenizers.Split(Regex(_SPLITS[name]), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    known = ", ".join([*_PLAIN, *_DIGIT_BY_DIGIT, *_SPLITS])
    raise ModelLoadError(f"{gguf.path}: pre-tokenizer {name!r} is not supported; supported: {known}")


def _add_whole_tokens(tokenizer: Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Tokens never cut into pieces: control tokens (special) and user-defined ones."""
    marked = [(token, kind) for token, kind in zip(tokens, kinds, strict=False) if kind in (_CONTROL, _USER_DEFINED)]
    for token, kind in marked:
        added = AddedToken(token, normalized=False, special=kind == _CONTROL)
        _ = tokenizer.add_special_tokens([added]) if kind == _CONTROL else tokenizer.add_tokens([added])
