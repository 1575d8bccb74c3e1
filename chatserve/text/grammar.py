"""`Grammar`: a rule for the whole text of an answer, as a request states it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

import msgspec


class Grammar(msgspec.Struct, frozen=True):
    """A rule for the whole text of an answer.

    Attributes:
        kind: what `source` is: a JSON schema, a regular expression (of the whole answer), or a context-free grammar in
            the Lark syntax of llguidance or in GBNF.
        source: its text.
        param: the field of the request it came from, named when it is refused.
    """

    kind: Literal["json_schema", "regex", "lark"]
    source: str
    param: str = "grammar"


def choice_grammar(choices: Sequence[str], param: str) -> Grammar:
    """The answer is one of these texts."""
    # As one terminal, since of the alternatives of a rule llguidance follows 2000 at most.
    return Grammar("lark", "start: CHOICE\nCHOICE: " + "|".join(json.dumps(choice) for choice in choices), param)
