"""`JsonCall`: one tool call, written as a JSON object with a name and arguments, read character by character."""

from __future__ import annotations

import json
from typing import Any, Literal

_ARGUMENTS = ("arguments", "parameters")
_SPACE = " \t\r\n"

State = Literal["before", "key", "colon", "value", "comma", "complete", "broken"]


class JsonCall:
    """Reads ``{"name": "f", "arguments": {...}}``; the arguments' own text can be passed on while it is being written.

    Attributes:
        state: "complete" behind the closing brace, "broken" when this is no such object.
        name: the function's name, once it is known.
    """

    def __init__(self) -> None:
        self.state: State = "before"
        self.name: str | None = None
        self._key = ""
        self._token: list[str] = []  # the key or value that is being read
        self._depth = 0  # of brackets inside the value
        self._in_string = False
        self._is_escaped = False
        self._has_arguments = False
        self._new_arguments: list[str] = []

    def push(self, character: str) -> None:
        """One more character; ask for nothing more once `state` is "complete" or "broken"."""
        match self.state:
            case "before":
                self._expect(character, {"{": "key"})
            case "key":
                self._read_key(character)
            case "colon":
                self._expect(character, {":": "value"})
            case "value":
                self._read_value(character)
            case "comma":
                self._expect(character, {",": "key", "}": "complete"})

    def take_arguments(self) -> str:
        """Text of the arguments since the last call; nothing before the name is known."""
        if self.name is None:
            return ""
        text = "".join(self._new_arguments)
        self._new_arguments.clear()
        return text

    def _expect(self, character: str, allowed: dict[str, State]) -> None:
        if character not in _SPACE:
            self.state = allowed.get(character, "broken")
            if self.state == "complete":
                self._complete()

    def _complete(self) -> None:
        if self.name is None:
            self.state = "broken"
        elif not self._has_arguments:
            self._new_arguments.append("{}")

    def _read_key(self, character: str) -> None:
        if not self._token and character in _SPACE:
            return
        if not self._token and character == "}":
            self._expect(character, {"}": "complete"})
        elif not self._token and character != '"':
            self.state = "broken"
        else:
            self._add(character)
            if not self._in_string:
                self._key, self.state = str(self._taken()), "colon"

    def _read_value(self, character: str) -> None:
        is_end = not self._in_string and not self._depth and character in ",}" + _SPACE
        if not self._token and character in _SPACE:
            return
        if is_end:
            self._end_value()
            if self.state != "broken":
                self._expect(character, {",": "key", "}": "complete"})
            return
        self._add(character)
        self._has_arguments = self._has_arguments or self._key in _ARGUMENTS
        if self._is_streamed():
            self._new_arguments.append(character)
        if not self._in_string and not self._depth and character in '"}]':
            self._end_value()

    def _add(self, character: str) -> None:
        """Take a character of a JSON value, keeping count of strings and brackets."""
        self._token.append(character)
        if self._in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif character == "\\":
                self._is_escaped = True
            elif character == '"':
                self._in_string = False
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1

    def _is_streamed(self) -> bool:
        """Arguments are passed on as they are; only those written as a JSON string have to be decoded first."""
        return self._key in _ARGUMENTS and self._token[0] != '"'

    def _end_value(self) -> None:
        is_streamed = bool(self._token) and self._is_streamed()
        value = self._taken()
        if self.state == "broken":
            return
        self.state = "comma"
        if self._key == "name":
            self.name = value if isinstance(value, str) else None
            self.state = "comma" if self.name else "broken"
        elif self._key in _ARGUMENTS and not is_streamed:
            self._new_arguments.append(str(value))

    def _taken(self) -> Any:
        """The value that has been read."""
        text = "".join(self._token)
        self._token.clear()
        self._depth = 0
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            self.state = "broken"
            return None
