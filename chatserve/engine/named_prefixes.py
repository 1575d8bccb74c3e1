"""`NamedPrefixes`: token lists that are computed once, pinned in the pool, and forked into requests by name.

Their last partial block is shared too, copy-on-write (PagedAttention, section 4.4, shared prefix).
"""

from __future__ import annotations

import re
from typing import Any

from chatserve.decoding.context import Context
from chatserve.decoding.group import SequenceGroup
from chatserve.decoding.registry import Decoder, Params
from chatserve.decoding.sequence import Sequence
from chatserve.errors import RequestError
from chatserve.kv import BlockTable

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check_prefix_name(name: str) -> None:
    """Raise RequestError for a name that would not fit into a path."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"name is {name[:80]!r}; it must be 1 to 64 letters, digits, dots, dashes or underscores.",
            param="name",
            code="invalid_value",
        )


class NamedPrefixes:
    """Pinned sequences by name.

    Args:
        group: holds the pinned sequences; it belongs to no request and is never closed.
    """

    def __init__(self, group: SequenceGroup) -> None:
        self._group = group
        self._by_name: dict[str, Sequence] = {}
        self._messages: dict[str, list[dict[str, Any]]] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks that are pinned; prefixes may share some of them."""
        return len({int(block) for table in self.tables() for block in table.blocks})

    def check_room(self, name: str, num_tokens: int) -> None:
        """Raise RequestError unless a prefix may be pinned under `name`: all of them may take half of the pool."""
        check_prefix_name(name)
        pool = self._group.pool
        beside = [sequence._table for other, sequence in self._by_name.items() if other != name]
        pinned = len({int(block) for table in beside for block in table.blocks}) + pool.blocks_for(num_tokens)
        if pinned > pool.num_blocks // 2:
            raise RequestError(
                f"prefix {name!r} would bring pinned blocks to {pinned}; allowed are {pool.num_blocks // 2}",
                code="prefix_too_long",
            )

    def holds(self, name: str, token_ids: tuple[int, ...]) -> bool:
        """Whether these tokens are registered under this name."""
        return name in self._by_name and self._by_name[name].tokens == list(token_ids)

    def tables(self) -> list[BlockTable]:
        return [sequence._table for sequence in self._group.live]

    def lengths(self) -> dict[str, int]:
        """Number of tokens of each prefix by name."""
        return {name: len(sequence) for name, sequence in sorted(self._by_name.items())}

    def get(self, name: str) -> Sequence:
        """The pinned sequence; fork it by `Sequence._share_kv`. Raises RequestError that lists the names there are."""
        if name not in self._by_name:
            known = ", ".join(sorted(self._by_name)) or "none"
            raise RequestError(
                f"prefix {name!r} is not registered; registered are: {known}", param="decoder_params.prefix"
            )
        return self._by_name[name]

    def remove(self, name: str) -> None:
        """Unpin; requests that run on it keep their shares."""
        self.get(name)._release()
        del self._by_name[name]
        self._messages.pop(name, None)

    def messages(self, name: str) -> list[dict[str, Any]] | None:
        """The messages a prefix was rendered from; None when it was not, or is not registered."""
        return self._messages.get(name)

    def computing(self, name: str, messages: list[dict[str, Any]] | None = None) -> Decoder:
        """A decoder that computes its prompt and pins it under `name`; a prefix of that name is replaced."""

        async def compute(ctx: Context, prompt: Sequence, params: Params) -> None:
            await ctx.topk([prompt], 1)
            self._pin(name, prompt)
            if messages is not None:
                self._messages[name] = messages
            ctx.finish()

        return Decoder("register-prefix", compute, Params, api=1, num_sequences=lambda params, n: 1)

    def _pin(self, name: str, computed: Sequence) -> None:
        self.check_room(name, len(computed))  # others may have been registered meanwhile
        pinned = Sequence(self._group, computed.tokens, len(computed), key=0)
        pinned._adopt(computed, len(computed))
        if name in self._by_name:
            self.remove(name)
        self._by_name[name] = pinned
