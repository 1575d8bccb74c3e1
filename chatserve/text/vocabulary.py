"""`Vocabulary`: text to token ids and back; the only door to the `tokenizers` package."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from chatserve.errors import RequestError
from chatserve.text.detokenizer import Detokenizer
from chatserve.text.token_bytes import ByteTable, build_byte_table

if TYPE_CHECKING:
    from chatserve.text.grammar_compiler import GrammarCompiler


class Vocabulary:
    """A model's tokens: their ids, their bytes, and which of them end an answer.

    Every token has fixed bytes, so that a text is always the lossy UTF-8 decoding of joined bytes. For byte-level
    tokenizers that is what `tokenizers` itself computes, for any list of ids. For sentencepiece it is the same whenever
    the bytes are valid UTF-8. For invalid ones `tokenizers` replaces every byte of a run of byte tokens, those of the
    run's valid characters too, which cannot be streamed; here only what is invalid becomes U+FFFD.

    Safe to share between threads: it does not change after construction.

    Args:
        tokenizer: belongs to the vocabulary from now on; do not change it.
        size: number of logits in a row of the model; may exceed the tokenizer's size (padding rows of the embedding).
        end_token_ids: tokens that end an answer; they never show in text.
        special_token_ids: further tokens that never show in text; None: those that the tokenizer marks as special.
        bos_token_id: begin token for `encode`; None: the tokenizer's own rules are all there is.

    Raises:
        ModelLoadError: the tokenizer's decoder is of a kind that is not supported.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        size: int,
        end_token_ids: tuple[int, ...],
        special_token_ids: frozenset[int] | None = None,
        bos_token_id: int | None = None,
    ) -> None:
        if special_token_ids is None:
            added = tokenizer.get_added_tokens_decoder()
            special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.size = size
        self.end_token_ids = end_token_ids
        self.special_token_ids = special_token_ids | frozenset(end_token_ids)
        self.bos_token_id = bos_token_id
        self._tokenizer = tokenizer
        self.byte_table = build_byte_table(tokenizer, size, self.special_token_ids)
        self._showing: dict[frozenset[int], Vocabulary] = {}

    def encode(self, text: str, *, add_special_tokens: bool = False, parse_special: bool = True) -> list[int]:
        """Token ids of `text`.

        Args:
            text: any string.
            add_special_tokens: add what the tokenizer adds around a text, and the begin token unless it is there.
            parse_special: the text of a special token, such as ``<|im_end|>``, becomes that token, as rendered chat
                templates need it; False takes it as ordinary characters.

        Raises:
            RequestError: the text holds a lone surrogate, so it is not valid Unicode.
        """
        tokenizer = self._tokenizer if parse_special else self._plain_tokenizer
        try:
            # Unlike `encode`, the batch form lets other threads run meanwhile: a long text must not stall the server.
            [encoding] = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            token_ids: list[int] = encoding.ids
        except TypeError:  # what tokenizers raises for a str that has no UTF-8 form
            raise RequestError("the text is not valid Unicode: it holds a lone surrogate") from None
        if add_special_tokens and self.bos_token_id is not None and token_ids[:1] != [self.bos_token_id]:
            return [self.bos_token_id, *token_ids]
        return token_ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`: special tokens and ids without a token add nothing, spaces stay as they are."""
        return self.byte_table.join(ids).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds inside a text; b"" for special tokens and ids without a token."""
        pieces = self.byte_table.pieces
        return pieces[token_id] if 0 <= token_id < len(pieces) else b""

    def token_name(self, token_id: int) -> str:
        """What the tokenizer itself calls a token, such as ``<|im_end|>`` or ``Ġthe``; "" for ids without a token."""
        return self._tokenizer.id_to_token(token_id) or "" if token_id >= 0 else ""

    def special_token_id(self, name: str) -> int | None:
        """Id of the special token that the tokenizer calls so; None when the model has none."""
        token_id = self._tokenizer.token_to_id(name)
        return token_id if token_id in self.special_token_ids and token_id < self.size else None

    def showing(self, token_ids: frozenset[int]) -> Vocabulary:
        """This vocabulary, except that these special tokens show in text, by their names. Not for grammars."""
        token_ids = frozenset(i for i in token_ids & self.special_token_ids if i < self.size)
        if not token_ids:
            return self
        if token_ids not in self._showing:
            shown = copy(self)
            pieces = [*self.byte_table.pieces]
            for token_id in token_ids:
                pieces[token_id] = self.token_name(token_id).encode()
            shown.byte_table = ByteTable(pieces, self.byte_table.openings)
            shown.special_token_ids = self.special_token_ids - token_ids
            self._showing[token_ids] = shown
        return self._showing[token_ids]

    def detokenizer(self) -> Detokenizer:
        """A fresh incremental decoder for one text."""
        return Detokenizer(self.byte_table)

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """Compiles grammars for these tokens."""
        from chatserve.text.grammar_compiler import GrammarCompiler  # llguidance takes a tenth of a second to import

        return GrammarCompiler(self)

    @cached_property
    def _plain_tokenizer(self) -> Tokenizer:
        """A copy that takes special tokens in a text as ordinary characters (a switch of the whole tokenizer)."""
        plain = Tokenizer.from_str(self._tokenizer.to_str())
        plain.encode_special_tokens = True
        return plain
