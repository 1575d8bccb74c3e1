"""`check_spelling`: unknown fields are ignored, but one that is all but a field of ours would silently do nothing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

from chatserve.errors import RequestError

# Fields that no other server has, so no client sends anything that looks like them for another reason.
_OURS = ("decoder", "decoder_params", "return_trace", "cache_salt")
_LIKENESS = 0.9  # one letter too many, missing or wrong; two in long names
_MAX_LOOKED_AT = 100


def check_spelling(unknown: Iterable[str]) -> None:
    """Raise RequestError for a field name that is close to one of ours."""
    for name in islice(unknown, _MAX_LOOKED_AT):
        if close := difflib.get_close_matches(name[:32].lower().replace("-", "_"), _OURS, n=1, cutoff=_LIKENESS):
            raise RequestError(
                f"{name[:80]} is not a field of this request; {close[0]} is.", param=name[:80], code="unknown_parameter"
            )
