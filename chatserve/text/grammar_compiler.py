"""`GrammarCompiler`: from a `Grammar` to a matcher over the tokens of one vocabulary."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLTokenizer
from llguidance._lib import LLParserLimits
from llguidance._tokenizer import TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark

from chatserve.errors import RequestError
from chatserve.text.grammar import Grammar

if TYPE_CHECKING:
    from chatserve.text.vocabulary import Vocabulary

# These bound the time of a compilation to about a second, that of a mask to milliseconds, and the recursion to what a
# thread's stack holds. The time of an expression grows with the square of its length.
_MAX_SOURCE_LENGTH = 131_072
_MAX_EXPRESSION_LENGTH = 16_384  # of a regular expression, a Lark grammar without its texts, or a string in a schema
_MAX_RULES = 1000
_MAX_REFERENCES = 1000
_LEXER_FUEL = 200_000

_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')

_MAX_LEXER_STATES = 50_000  # of 1 to 2 KB each, in each grammar that is remembered

_MAX_COMPILED = 64
_LONGEST_MESSAGE = 300

# Without a bound a small model may fill its answer with white space; this lets JSON be indented, but not for ever.
_JSON_OPTIONS: Any = {"whitespace_pattern": r"\n?[ \t]{0,20}"}


class GrammarCompiler:
    """Compiles grammars for one vocabulary and remembers the latest. Safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[tuple[str, str], LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._tokenizer_lock = threading.Lock()

    def compile(self, grammar: Grammar) -> LLMatcher:
        """A matcher at the beginning of the answer; copy it before use.

        Takes up to a second, once, and most of a second more for the first grammar of a large vocabulary.

        Raises:
            RequestError: the grammar is malformed, uses what is not supported, is too large, or allows no text at all.
        """
        key = (grammar.kind, grammar.source)
        with self._lock:  # never held while something is compiled: who asks for a known grammar must not wait
            if found := self._compiled.get(key):
                self._compiled.move_to_end(key)
                return found
        made = self._compile(grammar)
        with self._lock:
            self._compiled[key] = made
            if len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
        return made

    def _compile(self, grammar: Grammar) -> LLMatcher:
        _check_size(grammar)
        try:
            text = _MAKERS[grammar.kind](grammar.source)
        except Exception as error:  # the readers of schemas and GBNF are foreign code with exceptions of their own
            raise _refusal(grammar, str(error)) from None
        limits = LLParserLimits(
            initial_lexer_fuel=_LEXER_FUEL, max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False
        )
        matcher = LLMatcher(self._llguidance_tokenizer(), text, limits=limits, log_level=0)
        if not matcher.is_error():
            matcher.compute_bitmask()  # builds what all copies share, and finds grammars that allow nothing
        if matcher.is_error():
            raise _refusal(grammar, matcher.get_error())
        if matcher.is_stopped() and not matcher.is_accepting():
            raise _refusal(grammar, "no text satisfies it")
        return matcher

    def _llguidance_tokenizer(self) -> LLTokenizer:
        with self._tokenizer_lock:
            if self._tokenizer is None:
                wrapper = TokenizerWrapper(_VocabularyView(self._vocabulary))
                ends = list(self._vocabulary.end_token_ids)
                self._tokenizer = LLTokenizer(wrapper, n_vocab=self._vocabulary.size, eos_token=ends)
            return self._tokenizer


class _VocabularyView:
    """Our vocabulary as llguidance reads it: the bytes of every token; 0xFF marks those that never show in text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        ids = range(vocabulary.size)
        self.eos_token_id = vocabulary.end_token_ids[0] if vocabulary.end_token_ids else 0
        self.bos_token_id = vocabulary.bos_token_id
        self.special_token_ids = [token_id for token_id in ids if not vocabulary.token_bytes(token_id)]
        self.tokens = [vocabulary.token_bytes(token_id) or self._hidden(token_id) for token_id in ids]

    def __call__(self, text: bytes) -> list[int]:
        return self._vocabulary.encode(text.decode("utf-8", "replace"), parse_special=False)

    def _hidden(self, token_id: int) -> bytes:
        return b"\xff" + (self._vocabulary.token_name(token_id) or f"[{token_id}]").encode()


def _json_schema(source: str) -> str:
    return LLMatcher.grammar_from_json_schema(source, overrides=_JSON_OPTIONS)


def _lark(source: str) -> str:
    return LLMatcher.grammar_from_lark(any_to_lark(source))


_MAKERS: dict[str, Callable[[str], str]] = {
    "json_schema": _json_schema,
    "regex": LLMatcher.grammar_from_regex,
    "lark": _lark,
}


def _check_size(grammar: Grammar) -> None:
    source = grammar.source
    if not source.strip() and grammar.kind != "regex":
        raise _refusal(grammar, "it is empty")
    counted = [
        ("characters", len(source), _MAX_SOURCE_LENGTH),
        (*_expression_length(grammar), _MAX_EXPRESSION_LENGTH),
        ("references", source.count("$ref"), _MAX_REFERENCES),
        ("rules", source.count("\n") if grammar.kind == "lark" else 0, _MAX_RULES),
    ]
    for what, count, limit in counted:
        if count > limit:
            raise _refusal(grammar, f"it has {count} {what}, allowed are {limit}")


def _expression_length(grammar: Grammar) -> tuple[str, int]:
    """What of the grammar takes time with the square of its length, and how long that is."""
    strings = [len(found) for found in _STRING.findall(grammar.source)]
    match grammar.kind:
        case "json_schema":  # patterns may stand in several places
            return "characters in a string", max(strings, default=0)
        case "lark":
            return "characters outside of strings", len(grammar.source) - sum(strings)
        case "regex":
            return "characters", len(grammar.source)


def _refusal(grammar: Grammar, reason: str) -> RequestError:
    shown = " ".join(reason.split())[:_LONGEST_MESSAGE]
    return RequestError(f"{grammar.param} cannot be used: {shown}", param=grammar.param, code="invalid_value")
