"""Log-probabilities in the two shapes of the API: chat items, and the four parallel lists of legacy completions."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any

from chatserve.engine.generation import PublishedToken, TokenLogprob
from chatserve.text.vocabulary import Vocabulary

# JSON has no -inf; this is what OpenAI sends for "impossible".
_FLOOR = -9999.0


def token_text(token: PublishedToken | TokenLogprob, vocabulary: Vocabulary) -> str:
    r"""How a token is shown: its text, or ``bytes:\xf0\x9f`` when it is only part of a character.

    Tokens that add nothing to the answer (end tokens) are shown by their name.
    """
    raw = token.bytes or vocabulary.token_bytes(token.token_id)
    if not raw:
        return vocabulary.token_name(token.token_id)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _finite(logprob: float | None) -> float:
    """A number for JSON: a forced token counts as certain, an impossible one as the floor."""
    return 0.0 if logprob is None else max(logprob, _FLOOR)


def chat_logprobs(tokens: Iterable[PublishedToken], vocabulary: Vocabulary) -> dict[str, Any]:
    """``{"content": [...], "refusal": null}`` for the tokens of one chunk or of a whole choice."""
    return {"content": [_chat_item(token, vocabulary) for token in tokens], "refusal": None}


def _chat_item(token: PublishedToken, vocabulary: Vocabulary) -> dict[str, Any]:
    item = _chat_entry(token, vocabulary)
    item["top_logprobs"] = [_chat_entry(alternative, vocabulary) for alternative in token.top]
    return item


def _chat_entry(token: PublishedToken | TokenLogprob, vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "token": token_text(token, vocabulary),
        "logprob": _finite(token.logprob),
        "bytes": list(token.bytes),
    }


class LegacyLogprobs:
    """Builds ``{tokens, token_logprobs, top_logprobs, text_offset}`` of one choice; offsets run on over chunks.

    Offsets count characters. A token that starts inside a character has the offset of that character.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def prompt(self, tokens: Iterable[PublishedToken]) -> dict[str, list[Any]]:
        """The echoed prompt; its first token has no log-probability."""
        lists = _empty_lists()
        for token in tokens:
            self._add(lists, token, is_known=token.logprob is not None)
        return lists

    def answer(self, tokens: Iterable[PublishedToken]) -> dict[str, list[Any]]:
        """Further tokens of the answer."""
        lists = _empty_lists()
        for token in tokens:
            self._add(lists, token, is_known=True)
        return lists

    def _add(self, lists: dict[str, list[Any]], token: PublishedToken, *, is_known: bool) -> None:
        text = token_text(token, self._vocabulary)
        lists["tokens"].append(text)
        lists["text_offset"].append(self._offset)
        lists["token_logprobs"].append(_finite(token.logprob) if is_known else None)
        lists["top_logprobs"].append(self._alternatives(text, token) if is_known else None)
        self._offset += len(self._decoder.decode(token.bytes))

    def _alternatives(self, text: str, token: PublishedToken) -> dict[str, float]:
        """The alternatives and always the token itself: clients look it up to see whether the choice was greedy."""
        found = {token_text(entry, self._vocabulary): _finite(entry.logprob) for entry in token.top}
        return {**found, text: _finite(token.logprob)}


def _empty_lists() -> dict[str, list[Any]]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def joined(first: dict[str, list[Any]], second: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Two successive pieces as one."""
    return {name: first[name] + second[name] for name in first}
