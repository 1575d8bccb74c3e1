"""The bytes every token stands for, read from the decoder that a `tokenizers.Tokenizer` declares.

All tokenizers of decoder-only models that we know of are concatenative: each token has fixed bytes, whatever stands
around it, except that the very first token of a text may lose its leading space. Two families cover them:

- byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM): each character of the token stands for one byte (`ByteLevel`);
- sentencepiece (Llama 2, Mistral, Gemma): ``▁`` is a space and ``<0xNN>`` one byte.

A decoder outside these families is refused when the model is loaded, rather than guessed at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from chatserve.errors import ModelLoadError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class ByteTable:
    """The bytes of every token.

    Attributes:
        pieces: `pieces[id]` are the token's bytes inside a text; b"" for special tokens and padding.
        openings: what becomes of a piece that opens a text; pieces that stay as they are, are not listed.
    """

    pieces: list[bytes]
    openings: dict[bytes, bytes]

    def join(self, ids: Iterable[int]) -> bytes:
        """The bytes of a whole text; ids outside the table add nothing."""
        num_pieces = len(self.pieces)
        found = [piece for i in ids if 0 <= i < num_pieces and (piece := self.pieces[i])]
        if found and self.openings:
            found[0] = self.openings.get(found[0], found[0])
        return b"".join(found)


def byte_to_character() -> dict[int, str]:
    """GPT-2's reversible map of the 256 bytes to printable characters, as every `ByteLevel` tokenizer uses it."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def build_byte_table(tokenizer: Tokenizer, size: int, hidden: frozenset[int]) -> ByteTable:
    """The bytes of the ids ``0 .. size - 1``; `hidden` ids and ids that the tokenizer lacks have none.

    Raises:
        ModelLoadError: the tokenizer's decoder is of neither known family.
    """
    steps = _decoder_steps(tokenizer)
    to_bytes, to_opening = _converters(steps)
    pieces = [b""] * size
    for token, token_id in tokenizer.get_vocab().items():
        if token_id < size and token_id not in hidden:
            pieces[token_id] = to_bytes(token)
    openings = {piece: to_opening(piece) for piece in pieces if piece.startswith(b" ")} if to_opening else {}
    return ByteTable(pieces, openings)


def _decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The tokenizer's decoder as a flat list of its steps."""
    if tokenizer.decoder is None:
        raise ModelLoadError("the tokenizer declares no decoder: its tokens cannot be turned back into text")
    decoder: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _converters(steps: list[dict[str, Any]]) -> tuple[Callable[[str], bytes], Callable[[bytes], bytes] | None]:
    """How a token becomes bytes, and what becomes of bytes that start with a space at the start of a text."""
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds and set(kinds) <= {"ByteLevel", "Fuse"}:
        return _byte_level_converter(), None
    if kinds == ["Metaspace"]:
        drops_spaces = steps[0]["prepend_scheme"] != "never"
        return _sentencepiece_converter(steps[0]["replacement"], False), _drop_spaces if drops_spaces else None
    if set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"} and _is_sentencepiece(steps):
        opening = _drop_one_space if "Strip" in kinds else None
        return _sentencepiece_converter("▁", "ByteFallback" in kinds), opening
    raise ModelLoadError(
        f"the tokenizer's decoder ({', '.join(kinds)}) is not supported: only byte-level and sentencepiece are"
    )


def _is_sentencepiece(steps: list[dict[str, Any]]) -> bool:
    """Whether ``▁`` becomes a space, once, and at most one leading space of the whole text is stripped."""
    replaced = [(step["pattern"], step["content"]) for step in steps if step["type"] == "Replace"]
    stripped = [(step["content"], step["start"], step["stop"]) for step in steps if step["type"] == "Strip"]
    kinds = [step["type"] for step in steps]
    strips_text = not stripped or (stripped == [(" ", 1, 0)] and "Fuse" in kinds[: kinds.index("Strip")])
    return replaced == [({"String": "▁"}, " ")] and strips_text


def _byte_level_converter() -> Callable[[str], bytes]:
    to_byte = {ord(character): byte for byte, character in byte_to_character().items()}
    alphabet = frozenset(map(chr, to_byte))

    def convert(token: str) -> bytes:
        # An added token may hold characters outside the alphabet; tokenizers then takes the token as it stands.
        return token.translate(to_byte).encode("latin-1") if alphabet.issuperset(token) else token.encode()

    return convert


def _sentencepiece_converter(space: str, has_byte_tokens: bool) -> Callable[[str], bytes]:
    def convert(token: str) -> bytes:
        if has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match[1])
        return token.replace(space, " ").encode()

    return convert


def _drop_one_space(piece: bytes) -> bytes:
    return piece.removeprefix(b" ")


def _drop_spaces(piece: bytes) -> bytes:
    return piece.replace(b" ", b"")
