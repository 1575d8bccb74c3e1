"""How the threads of a step share its work: atomic counters and a wait that gives the core away.

A step is a list of stages, a stage a number of items. A thread takes the next item of the current stage by drawing a
ticket, and goes on to the next stage when all items are done, whoever did them. So nothing depends on the threads
really running at the same time: a thread that is late, or never comes, leaves its share to the others, and one thread
alone does all.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types

from chatserve.models.cpu import vector_code as code
from chatserve.models.cpu.vector_code import INT64, number

_SPINS, _YIELDS = 2000, 200
_SLEEP_MICROSECONDS = 50

_yield_core: Any = types.ExternalFunction("sched_yield", types.int32())
_sleep: Any = types.ExternalFunction("usleep", types.int32(types.uint32))


@code.intrinsic
def add_one(typing, address):  # type: ignore[no-untyped-def]
    """Atomically add 1 to the int64 at `address`; returns what it was. What was written before is seen by who reads
    it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(args[0], INT64.as_pointer()), number(1), "acq_rel")

    return types.int64(types.int64), generate


@code.intrinsic
def _read(typing, address):  # type: ignore[no-untyped-def]
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], INT64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


@code.intrinsic
def _pause(typing):  # type: ignore[no-untyped-def]
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if code.IS_X86:
            code.call(builder, "llvm.x86.sse2.pause", code.VOID)
        return context.get_dummy_value()

    return types.void(), generate


@njit(nogil=True)
def wait_for(address, count):  # type: ignore[no-untyped-def]
    """Return when the counter at `address` has reached `count`: spin for microseconds, then yield, then sleep."""
    tries = 0
    while _read(address) < count:
        tries += 1
        if tries < _SPINS:
            _pause()
        elif tries < _SPINS + _YIELDS:
            _yield_core()
        else:
            _sleep(_SLEEP_MICROSECONDS)


@code.intrinsic
def stamp(typing, address):  # type: ignore[no-untyped-def]
    """Write the processor's cycle counter to `address`; 0 where reading it may be forbidden."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        now = code.call(builder, "llvm.readcyclecounter", INT64) if code.IS_X86 else number(0)
        builder.store(now, builder.inttoptr(args[0], INT64.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64), generate
