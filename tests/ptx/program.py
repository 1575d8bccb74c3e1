"""`Program`: PTX text as a list of instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.visible\s+\.entry\s+(\w+)\s*\((.*?)\)[^{]*\{(.*)\}", re.DOTALL)
_SHARED = re.compile(r"\.shared(?:\s+\.align\s+(\d+))?\s+\.b8\s+(\w+)\[(\d+)\]")
_PARAMETER = re.compile(r"\.param\s+\.(\w+)\s+(\w+)")
_LABEL = re.compile(r"\s*([$\w]+):")
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.+)", re.DOTALL)
_GUARDED = re.compile(r"@(!?)(\S+)\s+(.*)", re.DOTALL)
_OPERAND = re.compile(r"\s*(\{[^}]*\}|\[[^\]]*\]|[^,]+)\s*(?:,|$)")


class Guard(NamedTuple):
    """The instruction runs in lanes where the predicate register holds (or does not, when negated)."""

    register: str
    is_negated: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """``@guard opcode.modifiers operands``, with the register names of inline assembly made unique."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]
    guard: Guard | None
    text: str


@dataclass(frozen=True, slots=True)
class Program:
    """One kernel.

    Attributes:
        entry: its name.
        parameters: (name, type) in order, such as ("f_param_0", "u64").
        shared: byte offset of each shared array; `shared_bytes` in all.
        registers: type of each register, such as {"%r1": "b32"}.
        labels: index of the instruction after each label.
    """

    entry: str
    parameters: list[tuple[str, str]]
    shared: dict[str, int]
    shared_bytes: int
    registers: dict[str, str]
    instructions: list[Instruction]
    labels: dict[str, int]


def parse(ptx: str) -> Program:
    """Raises ValueError when there is not exactly one kernel or a line is not understood."""
    text = _COMMENT.sub("", ptx)
    entry = _ENTRY.search(text)
    if entry is None or len(re.findall(r"\.entry", text)) != 1:
        raise ValueError("one kernel is expected")
    shared, shared_bytes = _lay_out_shared(text)
    registers: dict[str, str] = {}
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for label, statement in _statements(entry[3]):
        if label:
            labels[label] = len(instructions)
        elif declared := _REGISTERS.fullmatch(statement):
            registers.update(dict.fromkeys(_register_names(declared[2]), declared[1]))
        elif not statement.startswith("."):
            instructions.append(_instruction(statement))
    return Program(entry[1], [(name, kind) for kind, name in _PARAMETER.findall(entry[2])], shared, shared_bytes,
                   registers, instructions, labels)  # fmt: skip


def _lay_out_shared(text: str) -> tuple[dict[str, int], int]:
    """Every array lies as its declaration asks and no better, so that a wider access is seen to be misaligned."""
    offsets: dict[str, int] = {}
    end = 0
    for alignment, name, size in _SHARED.findall(text):
        step = int(alignment or 1)
        start = (-(-end // step) | 1) * step
        offsets[name], end = start, start + int(size)
    return offsets, end


def _statements(body: str) -> Iterator[tuple[str | None, str]]:
    """(label, "") or (None, statement). Names declared inside braces get the number of their scope."""
    position, scope, local_names = 0, 0, set[str]()
    while position < len(body):
        if body[position].isspace() or body[position] == ";":
            position += 1
        elif body[position] in "{}":
            scope, local_names, position = scope + (body[position] == "{"), set(), position + 1
        elif label := _LABEL.match(body, position):
            yield label[1], ""
            position = label.end()
        else:
            end = body.index(";", position)
            statement = " ".join(body[position:end].split())
            if scope and (declared := _REGISTERS.fullmatch(statement)) and "%" not in declared[2]:
                local_names.add(declared[2])
            for name in local_names:
                statement = re.sub(rf"(?<![\w.%]){name}\b", f"{name}@{scope}", statement)
            yield None, statement
            position = end + 1


def _register_names(declaration: str) -> list[str]:
    """``%r<5>`` declares %r0 to %r4."""
    names: list[str] = []
    for part in declaration.split(","):
        if family := re.fullmatch(r"\s*(%\w+)<(\d+)>\s*", part):
            names.extend(f"{family[1]}{i}" for i in range(int(family[2])))
        else:
            names.append(part.strip())
    return names


def _instruction(statement: str) -> Instruction:
    guard, text = None, statement
    if guarded := _GUARDED.fullmatch(statement):
        guard, text = Guard(guarded[2], bool(guarded[1])), guarded[3]
    name, _, rest = text.partition(" ")
    opcode, *modifiers = name.split(".")
    operands = tuple(operand.strip() for operand in _OPERAND.findall(rest) if operand.strip())
    return Instruction(opcode, tuple(modifiers), operands, guard, statement)
