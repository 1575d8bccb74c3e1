"""`PrefixIndex`: finds full blocks by the tokens they hold and everything before them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b


class IndexedBlock:
    """A full block in the index: its tokens behind those of `parent`, in the physical block `block`.

    Attributes:
        depth: blocks from the start of the sequence, this one included.
    """

    __slots__ = ("block", "depth", "key", "parent", "salt", "tokens")

    def __init__(
        self, key: bytes, parent: IndexedBlock | None, tokens: tuple[int, ...], salt: str | None, block: int
    ) -> None:
        self.key = key
        self.parent = parent
        self.tokens = tokens
        self.salt = salt
        self.block = block
        self.depth: int = parent.depth + 1 if parent else 1

    def at_depth(self, depth: int) -> IndexedBlock | None:
        """The ancestor (or self) with at most this depth."""
        entry: IndexedBlock | None = self
        while entry is not None and entry.depth > depth:
            entry = entry.parent
        return entry

    def path(self) -> list[IndexedBlock]:
        """All blocks from the start of the sequence to this one."""
        path: list[IndexedBlock] = []
        entry: IndexedBlock | None = self
        while entry is not None:
            path.append(entry)
            entry = entry.parent
        return path[::-1]


class PrefixIndex:
    """Full blocks by a 128-bit hash of (parent's hash, tokens, salt).

    A hash only finds a candidate: parent, tokens and salt are compared too, so a collision is a miss. Blocks under
    another salt are never found.
    """

    def __init__(self) -> None:
        self._by_key: dict[bytes, IndexedBlock] = {}
        self._by_block: dict[int, IndexedBlock] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, block: int) -> bool:
        return block in self._by_block

    def holds(self, entry: IndexedBlock) -> bool:
        """Whether the block still holds what it was indexed for."""
        return self._by_block.get(entry.block) is entry

    def find(self, parent: IndexedBlock | None, tokens: Sequence[int], salt: str | None = None) -> IndexedBlock | None:
        """The indexed block that holds `tokens` (a full block of them) behind `parent`."""
        wanted = tuple(tokens)
        found = self._by_key.get(_key(parent, wanted, salt))
        if found is None or found.parent is not parent or found.tokens != wanted or found.salt != salt:
            return None
        return found

    def add(
        self, parent: IndexedBlock | None, tokens: Sequence[int], block: int, salt: str | None = None
    ) -> IndexedBlock | None:
        """Index a block that `find` does not know; None when its hash is taken by other tokens."""
        wanted = tuple(tokens)
        key = _key(parent, wanted, salt)
        if key in self._by_key:
            return None
        entry = IndexedBlock(key, parent, wanted, salt, block)
        self._by_key[key] = self._by_block[block] = entry
        return entry

    def remove(self, block: int) -> None:
        """Forget a block, if it is known. What was indexed behind it can no longer be found."""
        entry = self._by_block.pop(block, None)
        if entry is not None:
            del self._by_key[entry.key]


def _key(parent: IndexedBlock | None, tokens: tuple[int, ...], salt: str | None) -> bytes:
    """128 bits over everything before the block and its tokens (4 bytes each)."""
    before = parent.key if parent is not None else repr(salt).encode()
    return _digest(before + b"\0" + array("i", tokens).tobytes())


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
