"""`JsonCall`: one tool call, written as a JSON object with a name and arguments, read character by character."""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any, Literal

_ARGUMENTS = ("arguments", "parameters")
_BEFORE_CALL = ("name", *_ARGUMENTS, "type", "id")
_SPACE = " \t\r\n"

State = Literal["before", "key", "colon", "value", "comma", "complete", "broken"]


class JsonCall:
    """Reads ``{"name": "f", "arguments": {...}}``; the arguments' own text can be passed on while it is being written.

    A name or arguments given once more are ignored.

    Args:
        functions: the object is a call only if it names one of these and has arguments, with no other key before them
            than a type and an id: thus another object is known at its first keys. None: if it has any name.

    Attributes:
        state: "complete" behind the closing brace, "broken" when this is no such object.
    """

    def __init__(self, functions: Container[str] | None = None) -> None:
        self.state: State = "before"
        self._functions = functions
        self._name: str | None = None
        self._key = ""
        self._token: list[str] = []  # the key or value that is being read
        self._depth = 0  # of brackets inside the value
        self._in_string = False
        self._is_escaped = False
        self._has_arguments = False
        self._is_arguments = False  # the value that is being read is the arguments
        self._new_arguments: list[str] = []

    @property
    def name(self) -> str | None:
        """The function's name, once it is certain that this is a call."""
        return self._name if self._functions is None or self._has_arguments else None

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
                # As it is written: a key in other words, such as "n\u0061me", would escape the grammars of calls.
                self._key, self.state = "".join(self._token)[1:-1], "colon"
                self._taken()
                if self._functions is not None and self.name is None and self._key not in _BEFORE_CALL:
                    self.state = "broken"

    def _read_value(self, character: str) -> None:
        is_end = not self._in_string and not self._depth and character in ",}" + _SPACE
        if not self._token and character in _SPACE:
            return
        if is_end:
            self._end_value()
            if self.state != "broken":
                self._expect(character, {",": "key", "}": "complete"})
            return
        if not self._token:
            self._is_arguments = self._key in _ARGUMENTS and not self._has_arguments
            self._has_arguments |= self._is_arguments
        self._add(character)
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
        return self._is_arguments and self._token[0] != '"'

    def _end_value(self) -> None:
        is_streamed = bool(self._token) and self._is_streamed()
        value = self._taken()
        if self.state == "broken":
            return
        self.state = "comma"
        if self._key == "name" and self._name is None:
            self._read_name(value)
        elif self._is_arguments and not is_streamed:
            self._new_arguments.append(str(value))

    def _read_name(self, name: Any) -> None:
        if isinstance(name, str) and name and (self._functions is None or name in self._functions):
            self._name = name
        else:
            self.state = "broken"

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
