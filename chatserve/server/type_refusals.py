"""`type_refusal`: what msgspec finds wrong with a body, in the words of the OpenAI API."""

from __future__ import annotations

import re

import msgspec

from chatserve.errors import RequestError

_EXPECTED = re.compile(r"Expected `(?P<expected>[^`]*)`, got `(?P<got>[^`]*)`")
_LENGTH = re.compile(r"Expected `array` of length (?P<bound>[<>]=) (?P<count>\d+)")
_MISSING = re.compile(r"missing required field `(?P<field>[^`]*)`")
_PATH = re.compile(r" - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]*)`$")
_ANY_KEY = "[...]"
_TYPE_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool}


def type_refusal(text: str, raw: bytes) -> RequestError:
    """The refusal of the body `raw` for which msgspec says ``Expected `str`, got `int` - at `$.messages[0].role` ``."""
    place = _PATH.search(text)
    wrong = _EXPECTED.search(text)
    path = place["path"] if place else ""
    if place and wrong and not place["key"]:
        path = _with_key(path, raw, wrong["expected"])
    path = path.replace(_ANY_KEY, "")
    subject = path or "The request body"
    if place and place["key"]:
        subject = f"A key of {path}"
    if missing := _MISSING.search(text):
        path = f"{path}.{missing['field']}" if path else missing["field"]
        return RequestError(f"{path} is missing.", param=path, code="missing_required_parameter")
    if wrong:
        names = [_TYPE_NAMES.get(name, name) for name in wrong["expected"].split(" | ") if name != "null"]
        got = _TYPE_NAMES.get(wrong["got"], wrong["got"])
        return RequestError(
            f"{subject} must be {' or '.join(names)}, not {got}.", param=path or None, code="invalid_type"
        )
    if length := _LENGTH.search(text):
        allowed = f"at {'least' if length['bound'] == '>=' else 'most'} {length['count']}"
        return RequestError(f"{subject} must have {allowed} entries.", param=path or None, code="invalid_value")
    reason = _PATH.sub("", text)
    return RequestError(f"{subject}: {reason[:1].lower()}{reason[1:]}.", param=path or None, code="invalid_value")


def _with_key(path: str, raw: bytes, expected: str) -> str:
    """The path of a value of the wrong type, with its key where it is in an object: msgspec does not tell that one."""
    field = path.removesuffix(_ANY_KEY)
    if field == path or expected not in _TYPES:
        return path
    try:
        body = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        values = msgspec.json.decode(body.get(field, b"{}"), type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:  # the rest of the body is no JSON
        return path
    for key, value in values.items():
        try:
            msgspec.json.decode(value, type=_TYPES[expected])
        except msgspec.DecodeError:
            return f"{field}.{key[:80]}"
    return path
