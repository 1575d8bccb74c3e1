"""`MistralCall`: the calls behind one ``[TOOL_CALLS]`` of a Mistral model, read character by character."""

from __future__ import annotations

import re
from typing import Literal

from chatserve.text.json_call import JsonCall

# A function's name, an id that we have no use for, and the marker of the arguments: some models leave it out.
_HEAD = re.compile(r"([\w.-]{1,64})(?:\[CALL_ID\]\w{1,64})?(?:\[ARGS\]\s*)?", re.ASCII)
_IN_HEAD = re.compile(r"[\w.\[\]-]", re.ASCII)
_LONGEST_HEAD = 160

State = Literal["head", "call", "behind", "next", "complete", "broken"]


class MistralCall:
    """Reads ``[{"name": "f", "arguments": {...}}, ...]`` as the older models write, ``f[ARGS]{...}`` as the newer do.

    The newer ones may have ``[CALL_ID]`` and an id between the name and ``[ARGS]``.

    Attributes:
        state: "next" between two calls of a list, "complete" behind the last, "broken" when these are no calls.
    """

    def __init__(self) -> None:
        self.state: State = "head"
        self._head = ""
        self._call = JsonCall()
        self._is_listed = False
        self._has_end = True  # the call is a JSON object of its own, which a brace ends

    @property
    def name(self) -> str | None:
        """The function's name, once it is known."""
        return self._call.name

    def push(self, character: str) -> None:
        """One more character; ask for nothing more once `state` is "complete" or "broken"."""
        match self.state:
            case "next":
                self._read_next(character)
            case "head":
                self._read_head(character)
            case "call":
                self._read_call(character)
            case "behind":
                self._read_behind(character)

    def take_arguments(self) -> str:
        """Text of the arguments since the last call; nothing before the name is known."""
        return self._call.take_arguments()

    def _read_head(self, character: str) -> None:
        if character == "{":
            self._begin_call()
        elif character == "[" and not self._head:
            self._is_listed, self.state = True, "call"
        elif not character.isspace() or "[ARGS]" in self._head:
            self._head += character
            is_head = character.isspace() or _IN_HEAD.fullmatch(character)
            if not is_head or len(self._head) > _LONGEST_HEAD:
                self.state = "broken"
        elif self._head:
            self.state = "broken"

    def _begin_call(self) -> None:
        """The brace that begins the arguments, or else an object with a name in it."""
        self.state, opening = "call", "{"
        if self._head:
            match = _HEAD.fullmatch(self._head)
            if match is None:
                self.state = "broken"
                return
            self._has_end = False
            opening = f'{{"name": "{match[1]}", "arguments": {{'
        for character in opening:
            self._call.push(character)

    def _read_call(self, character: str) -> None:
        self._call.push(character)
        if self._call.state == "broken":
            self.state = "broken"
        elif self._call.state == ("complete" if self._has_end else "comma"):
            self.state = "behind" if self._is_listed else "complete"

    def _read_next(self, character: str) -> None:
        """What follows a comma: another call, or the end, since some models write a comma before it."""
        if character == "]":
            self.state = "complete"
        elif not character.isspace():
            self._call, self.state = JsonCall(), "call"
            self._read_call(character)

    def _read_behind(self, character: str) -> None:
        if not character.isspace():
            ends: dict[str, State] = {",": "next", "]": "complete"}
            self.state = ends.get(character, "broken")
