"""`run`: execute a kernel's PTX for a whole grid, all lanes of several thread blocks at once as NumPy vectors.

Lanes that differ in where they are take turns: those at the earliest instruction run until they meet others. That
brings lanes together again wherever the compiler's code lets them meet, and shows a warp-wide instruction that only
some lanes reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.ptx import warps
from tests.ptx.arithmetic import DTYPES, OPERATIONS, WIDER, compare, convert
from tests.ptx.faults import KernelFault
from tests.ptx.global_memory import GlobalMemory
from tests.ptx.program import Instruction, Program
from tests.ptx.shared_memory import SharedMemory

_MAX_LANES = 8192
_FINISHED = 1 << 30
_GARBAGE = 0x7FD5D5D57FD5D5D5
"""What registers hold before they are written: not-a-number as a float, a far address as an integer."""

Mask = NDArray[np.bool_]
Lanes = NDArray[Any]


def run(
    program: Program,
    grid: tuple[int, int, int],
    num_threads: int,
    arguments: Sequence[int | float],
    memory: GlobalMemory,
) -> None:
    """Run all thread blocks of `grid`; arguments are in the order of the kernel's parameters.

    Raises KernelFault, naming the instruction, for what a GPU would punish or might not notice.
    """
    if len(arguments) != len(program.parameters):
        raise ValueError(f"{len(program.parameters)} arguments are expected, {len(arguments)} given")
    if num_threads % 32:
        raise ValueError("a thread block has whole warps")
    num_blocks = grid[0] * grid[1] * grid[2]
    step = max(1, _MAX_LANES // num_threads)
    with np.errstate(all="ignore"):
        for first in range(0, num_blocks, step):
            blocks = np.arange(first, min(first + step, num_blocks))
            _Machine(program, grid, num_threads, arguments, memory, blocks).run()


class _Registers(dict[str, Lanes]):
    """Registers by name, made when they are first named; operands that are none are not in it."""

    def __init__(self, kinds: dict[str, str], num_lanes: int) -> None:
        super().__init__()
        self._kinds, self._num_lanes = kinds, num_lanes

    def __missing__(self, name: str) -> Lanes:
        kind = self._kinds[name]
        if kind == "pred":
            self[name] = np.zeros(self._num_lanes, bool)
        else:
            dtype = DTYPES[kind]
            unsigned = np.dtype(f"u{dtype.itemsize}")
            bits = np.full(self._num_lanes, _GARBAGE & ((1 << 8 * dtype.itemsize) - 1), unsigned)
            self[name] = bits.view(dtype)
        return self[name]


class _Machine:
    def __init__(
        self, program: Program, grid: tuple[int, int, int], num_threads: int, arguments: Sequence[int | float],
        memory: GlobalMemory, blocks: NDArray[np.int64],
    ) -> None:  # fmt: skip
        self._program, self._memory = program, memory
        self._num_lanes = len(blocks) * num_threads
        self._blocks = np.repeat(np.arange(len(blocks)), num_threads)
        self._lanes = np.tile(np.arange(num_threads), len(blocks))
        self._threads = np.repeat(blocks, num_threads) * num_threads + self._lanes
        self._shared = SharedMemory(len(blocks), program.shared_bytes)
        numbers = np.repeat(blocks, num_threads)
        self._special = {
            "%tid.x": self._lanes,
            "%ntid.x": np.full(self._num_lanes, num_threads),
            "%ctaid.x": numbers % grid[0],
            "%ctaid.y": numbers // grid[0] % grid[1],
            "%ctaid.z": numbers // (grid[0] * grid[1]),
            "%nctaid.x": np.full(self._num_lanes, grid[0]),
            "%nctaid.y": np.full(self._num_lanes, grid[1]),
            "%nctaid.z": np.full(self._num_lanes, grid[2]),
            "%laneid": self._lanes % 32,
        }
        for name in ("%tid", "%ctaid"):
            self._special.setdefault(f"{name}.y", np.zeros(self._num_lanes, np.int64))
            self._special.setdefault(f"{name}.z", np.zeros(self._num_lanes, np.int64))
        self._parameters = {
            name: np.array([value]).astype(DTYPES[kind])
            for (name, kind), value in zip(program.parameters, arguments, strict=True)
        }
        self._registers = _Registers(program.registers, self._num_lanes)
        self._at = np.zeros(self._num_lanes, np.int64)
        self._is_waiting = np.zeros(self._num_lanes, bool)

    def run(self) -> None:
        while True:
            runnable = (self._at < _FINISHED) & ~self._is_waiting
            if not runnable.any():
                if not self._is_waiting.any():
                    break
                self._release_barriers()
                continue
            positions = self._at[runnable]
            start = int(positions.min())
            later = positions[positions > start]
            self._advance(runnable & (self._at == start), start, int(later.min()) if len(later) else _FINISHED)
        self._shared.check_finished()

    def _advance(self, mask: Mask, position: int, stop: int) -> None:
        """Run the lanes of `mask` until they jump, wait, end or reach `stop`, where others are."""
        instructions = self._program.instructions
        is_whole = bool(mask.all())
        while position < stop:
            if position == len(instructions):
                raise KernelFault("the kernel runs past its end")
            instruction = instructions[position]
            try:
                if self._jump(instruction, mask, position):
                    return
                chosen, all_chosen = mask, is_whole
                if instruction.guard is not None:
                    chosen = mask & self._holds(instruction)
                    all_chosen = bool(chosen.all())
                if all_chosen or chosen.any():
                    self._execute(instruction, chosen, all_chosen)
            except KernelFault as fault:
                raise KernelFault(f"{fault}\n  at: {instruction.text}") from None
            position += 1
        self._at[mask] = position

    def _holds(self, instruction: Instruction) -> Mask:
        assert instruction.guard is not None
        holds: Mask = self._registers[instruction.guard.register]
        return ~holds if instruction.guard.is_negated else holds

    # Control

    def _jump(self, instruction: Instruction, mask: Mask, position: int) -> bool:
        """Whether the instruction moved lanes to elsewhere than the next one."""
        if instruction.opcode not in ("bra", "ret", "exit", "bar", "barrier"):
            return False
        taken = mask if instruction.guard is None else mask & self._holds(instruction)
        self._at[mask] = position + 1
        if instruction.opcode == "bra":
            self._at[taken] = self._program.labels[instruction.operands[0]]
        elif instruction.opcode in ("ret", "exit"):
            self._at[taken] = _FINISHED
        elif instruction.modifiers[:1] == ("warp",):
            self._check_whole_warps(taken)
        else:
            self._is_waiting |= taken
        return True

    def _release_barriers(self) -> None:
        for block in np.unique(self._blocks[self._is_waiting]):
            mine = self._blocks == block
            if not self._is_waiting[mine].all():
                raise KernelFault("a barrier is not reached by all lanes of the block: some have ended")
            if len(np.unique(self._at[mine])) > 1:
                raise KernelFault("lanes of a block wait at different barriers")
            self._is_waiting[mine] = False
            self._shared.pass_barrier(np.array([block]))

    def _check_whole_warps(self, mask: Mask) -> NDArray[np.int64]:
        """Indices of the lanes of all warps in `mask`, which must be there in full: int[warps, 32]."""
        by_warp = mask.reshape(-1, 32)
        present = by_warp.any(axis=1)
        if not by_warp[present].all():
            raise KernelFault("a warp-wide instruction is reached by only some lanes of a warp")
        return np.flatnonzero(mask).reshape(-1, 32)

    # Operands

    def _read(self, operand: str, kind: str, *, may_narrow: bool = False) -> Lanes:
        """A register, special register, shared symbol or constant, as lanes or a single number of type `kind`.

        `may_narrow`: of a wider register the lower bits count, as ``cvt`` and ``st`` allow.
        """
        dtype = DTYPES[kind]
        if operand in self._program.registers:
            register = self._registers[operand]
            if kind == "pred" or register.dtype == dtype:
                return register
            if register.dtype.itemsize == dtype.itemsize:
                return register.view(dtype)
            if may_narrow and register.dtype.itemsize > dtype.itemsize:
                return register.astype(f"u{dtype.itemsize}").view(dtype)
            raise KernelFault(f"{operand} is not {8 * dtype.itemsize} bits wide")
        if operand in self._special:
            return self._special[operand].astype(dtype)
        if operand in self._program.shared:
            return np.array([self._program.shared[operand]]).astype(dtype)
        return _constant(operand, dtype)

    def _write(self, operand: str, values: Lanes, mask: Mask, is_whole: bool) -> None:
        if operand == "_":
            return
        register = self._registers[operand]
        if values.dtype != register.dtype:
            if values.dtype.itemsize != register.dtype.itemsize:
                raise KernelFault(f"{operand} has another width than what is put into it")
            values = values.view(register.dtype)
        if is_whole:
            register[...] = values
        else:
            np.copyto(register, values, where=mask)

    def _address(self, operand: str) -> NDArray[np.int64]:
        """``[register + offset]`` or ``[symbol + offset]``, for all lanes."""
        base, _, offset = operand.strip("[]").replace(" ", "").partition("+")
        if base in self._program.shared:
            start = np.full(self._num_lanes, self._program.shared[base], np.int64)
        else:
            register = self._registers[base]
            start = register.astype(np.int64)
        return start + int(offset or 0)

    # Execution

    def _execute(self, instruction: Instruction, mask: Mask, is_whole: bool) -> None:
        opcode, modifiers, operands = instruction.opcode, instruction.modifiers, instruction.operands
        operation = OPERATIONS.get(opcode)
        if operation is not None and "{" not in operands[-1] and "{" not in operands[0]:
            kind = modifiers[-1]
            kinds = [kind] * (len(operands) - 1)
            if opcode in ("shl", "shr"):
                kinds[1] = "u32"
            elif opcode == "mad" and "wide" in modifiers:
                kinds[2] = WIDER[kind]
            sources = [self._read(operand, its_kind) for operand, its_kind in zip(operands[1:], kinds, strict=True)]
            self._write(operands[0], operation(modifiers, kind, sources), mask, is_whole)
            return
        handler = _HANDLERS.get(opcode)
        if handler is None:
            raise KernelFault(f"unknown instruction: {instruction.text}")
        handler(self, modifiers, operands, mask, is_whole)

    def _repack(self, modifiers: Any, operands: Any, mask: Mask, is_whole: bool) -> None:
        """``mov`` between a register and a vector of narrower ones."""
        target, source = operands
        if target.startswith("{"):
            parts = _vector(target)
            width = DTYPES[modifiers[-1]].itemsize // len(parts)
            pieces = np.ascontiguousarray(self._read(source, modifiers[-1])).view(np.dtype(f"u{width}"))
            for i, part in enumerate(parts):
                self._write(part, pieces.reshape(-1, len(parts))[:, i].copy(), mask, is_whole)
            return
        parts = _vector(source)
        kind = f"b{8 * DTYPES[modifiers[-1]].itemsize // len(parts)}"
        columns = [np.broadcast_to(self._read(part, kind), self._num_lanes) for part in parts]
        whole = np.ascontiguousarray(np.stack(columns, axis=1)).view(DTYPES[modifiers[-1]])[:, 0]
        self._write(target, whole, mask, is_whole)

    def _compare(self, modifiers: Any, operands: Any, mask: Mask, is_whole: bool) -> None:
        left, right = (self._read(operand, modifiers[-1]) for operand in operands[1:3])
        result = compare(modifiers[0], left, right)
        if len(operands) > 3:
            other = self._read(operands[3].lstrip("!"), "pred")
            other = ~other if operands[3].startswith("!") else other
            result = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[modifiers[1]](result, other)
        self._write(operands[0], np.broadcast_to(result, self._num_lanes), mask, is_whole)

    def _select(self, modifiers: Any, operands: Any, mask: Mask, is_whole: bool) -> None:
        first, second = (self._read(operand, modifiers[-1]) for operand in operands[1:3])
        self._write(operands[0], np.where(self._read(operands[3], "pred"), first, second), mask, is_whole)

    def _convert(self, modifiers: Any, operands: Any, mask: Mask, is_whole: bool) -> None:
        sources = [self._read(operand, modifiers[-1], may_narrow=True) for operand in operands[1:]]
        self._write(operands[0], np.ascontiguousarray(convert(modifiers, sources)), mask, is_whole)

    def _load(self, modifiers: Any, operands: Any, mask: Mask, is_whole: bool) -> None:
        targets, dtype = _vector(operands[0]), DTYPES[modifiers[-1]]
        if modifiers[0] == "param":
            value = self._parameters[operands[1].strip("[]")].view(dtype)
            self._scatter(operands[0], np.broadcast_to(value, int(mask.sum())), mask)
            return
        addresses = self._address(operands[1])[mask]
        if modifiers[0] == "shared":
            _check_word_access(dtype)
            loaded = self._shared.load(self._blocks[mask], addresses, len(targets), self._lanes[mask])
        else:
            loaded = self._memory.load(addresses, dtype.itemsize, len(targets), self._threads[mask])
        for i, target in enumerate(targets):
            self._scatter(target, loaded[:, i].copy().view(dtype), mask)

    def _scatter(self, target: str, values: Lanes, mask: Mask) -> None:
        """Write values of the lanes in `mask` only."""
        register = self._registers[target]
        if values.dtype.itemsize < register.dtype.itemsize:
            values = values.astype(np.int64 if values.dtype.kind == "i" else np.uint64).astype(
                f"u{register.dtype.itemsize}"
            )
        register[mask] = values.view(register.dtype)

    def _store(self, modifiers: Any, operands: Any, mask: Mask, is_whole: bool) -> None:
        dtype = DTYPES[modifiers[-1]]
        parts = (self._read(part, modifiers[-1], may_narrow=True) for part in _vector(operands[1]))
        sources = [np.broadcast_to(part, self._num_lanes)[mask] for part in parts]
        values = np.stack(sources, axis=1).view(np.dtype(f"u{dtype.itemsize}"))
        addresses = self._address(operands[0])[mask]
        if modifiers[0] == "shared":
            _check_word_access(dtype)
            self._shared.store(self._blocks[mask], addresses, values, self._lanes[mask])
        else:
            self._memory.store(addresses, values, self._threads[mask])

    def _copy_async(self, modifiers: Any, operands: Any, mask: Mask, is_whole: bool) -> None:
        """``cp.async [shared], [global], 16, size`` and ``cp.async.wait_all``."""
        if "wait_all" in modifiers:
            self._shared.finish_copies(self._blocks[mask], self._lanes[mask])
            return
        num_bytes = int(operands[2])
        sizes = np.broadcast_to(self._read(operands[3], "u32"), self._num_lanes)[mask]
        if not np.isin(sizes, (0, num_bytes)).all():
            raise KernelFault("an asynchronous copy moves all of its bytes or none")
        values = np.zeros((len(sizes), num_bytes // 4), np.uint32)
        wanted = sizes > 0
        if wanted.any():
            addresses = self._address(operands[1])[mask][wanted]
            values[wanted] = self._memory.load(addresses, 4, num_bytes // 4, self._threads[mask][wanted])
        self._shared.start_copies(self._blocks[mask], self._address(operands[0])[mask], values, self._lanes[mask])

    def _shuffle(self, modifiers: Any, operands: Any, mask: Mask, is_whole: bool) -> None:
        lanes = self._check_whole_warps(mask)
        if (np.broadcast_to(self._read(operands[4], "u32"), self._num_lanes)[lanes] != 0xFFFFFFFF).any():
            raise KernelFault("shuffles name all lanes of the warp")
        values = self._read(operands[1], "b32")[lanes]
        distance = np.broadcast_to(self._read(operands[2], "u32"), self._num_lanes)[lanes]
        clamp = int(np.broadcast_to(self._read(operands[3], "u32"), self._num_lanes)[lanes[0, 0]])
        received, in_range = warps.shuffle(modifiers[1], values, distance, clamp)
        target, _, predicate = operands[0].partition("|")
        self._registers[target].view(np.uint32)[lanes] = received
        if predicate:
            self._registers[predicate][lanes] = in_range

    def _load_matrices(self, modifiers: Any, operands: Any, mask: Mask, is_whole: bool) -> None:
        lanes = self._check_whole_warps(mask)
        flat = lanes.reshape(-1)
        addresses = self._address(operands[1])[flat]
        rows = self._shared.load(self._blocks[flat], addresses, 4, self._lanes[flat]).reshape(-1, 32, 4)
        for target, words in zip(
            _vector(operands[0]), warps.distribute_matrices(rows, "trans" in modifiers), strict=True
        ):
            self._registers[target][lanes] = words

    def _multiply_matrices(self, modifiers: Any, operands: Any, mask: Mask, is_whole: bool) -> None:
        if modifiers[:5] != ("sync", "aligned", "m16n8k16", "row", "col"):
            raise KernelFault(f"unknown matrix shape {modifiers}")
        lanes = self._check_whole_warps(mask)
        left, right = ([self._read(part, "b32")[lanes] for part in _vector(operand)] for operand in operands[1:3])
        sums = [np.broadcast_to(self._read(part, "f32"), self._num_lanes)[lanes] for part in _vector(operands[3])]
        for target, values in zip(
            _vector(operands[0]), warps.multiply_matrices(modifiers[6], left, right, sums), strict=True
        ):
            self._registers[target].view(np.float32)[lanes] = values


_Handler = Callable[[_Machine, Any, Any, Mask, bool], None]
_HANDLERS: dict[str, _Handler] = {
    "mov": _Machine._repack,
    "setp": _Machine._compare,
    "selp": _Machine._select,
    "cvt": _Machine._convert,
    "ld": _Machine._load,
    "st": _Machine._store,
    "cp": _Machine._copy_async,
    "shfl": _Machine._shuffle,
    "ldmatrix": _Machine._load_matrices,
    "mma": _Machine._multiply_matrices,
}


def _vector(operand: str) -> list[str]:
    return [part.strip() for part in operand.strip("{}").split(",")]


def _check_word_access(dtype: np.dtype[Any]) -> None:
    if dtype.itemsize != 4:
        raise KernelFault("shared memory is read and written in words of 32 bits")


def _constant(text: str, dtype: np.dtype[Any]) -> Lanes:
    if text.startswith(("0f", "0F")):
        return np.array([int(text[2:], 16)], np.uint32).view(np.float32)
    if text.startswith(("0d", "0D")):
        return np.array([int(text[2:], 16)], np.uint64).view(np.float64)
    if dtype == np.bool_:
        return np.array([text not in ("0", "false")])
    return np.array([int(text, 0) & ((1 << 8 * dtype.itemsize) - 1)], np.dtype(f"u{dtype.itemsize}")).view(dtype)
