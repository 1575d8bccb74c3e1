"""`Detokenizer`: token ids to text, one token at a time."""

from __future__ import annotations

from codecs import utf_8_decode

from chatserve.text.token_bytes import ByteTable


class Detokenizer:
    """Incremental decoding of one text: the joined pieces equal ``Vocabulary.decode`` of all ids.

    Why not `tokenizers.decoders.DecodeStream`: it holds every token back while the decoded text ends in U+FFFD, and
    decodes all of them again at each step, so an answer of invalid bytes is never shown and costs quadratic time; and
    it has no flush. Tokens have fixed bytes here (see `ByteTable`), so an incremental UTF-8 decoder does: at most 3
    bytes are ever held, a step costs the bytes of its token, and CPython's rule for invalid bytes (one U+FFFD for each
    maximal invalid part, as the Unicode standard recommends) is that of Rust's lossy decoding in `tokenizers`.

    Attributes:
        partial: the bytes of a character that is not complete yet; at most 3.
    """

    __slots__ = ("_has_opened", "_table", "partial")

    def __init__(self, table: ByteTable) -> None:
        self._table = table
        self.partial = b""
        self._has_opened = not table.openings

    def step(self, token_id: int) -> str:
        """Text that is settled by this token: no later token can change it. Ids without a token add nothing."""
        return self.feed(self.next_piece(token_id))

    def next_piece(self, token_id: int) -> bytes:
        """The bytes this token adds as the next one of the text; pass them to `feed`."""
        pieces = self._table.pieces
        piece = pieces[token_id] if 0 <= token_id < len(pieces) else b""
        if not self._has_opened and piece:
            self._has_opened = True
            return self._table.openings.get(piece, piece)
        return piece

    def feed(self, piece: bytes) -> str:
        """Text that is settled by these bytes."""
        data = self.partial + piece if self.partial else piece
        text, num_used = utf_8_decode(data, "replace", False)
        if self.partial or num_used < len(data):
            self.partial = data[num_used:]
        return text

    def flush(self) -> str:
        """The rest at the end of the text: U+FFFD for a character that was cut, else nothing."""
        text = self.partial.decode("utf-8", "replace")
        self.partial = b""
        return text
