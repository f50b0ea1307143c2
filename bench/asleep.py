"""Kernels that sleep for as long as they compute, for measurements of several devices on few cores.

Each kind of call is measured once, as the CPU time of one thread. Schedules that are prepared for workers inside `sleeping`
call a compiled sleep of that time instead. Copies, links and workers stay as they are. Steps by coroutines compute as ever.

A thread that wakes up late, because something else has its core, sleeps that much less next, unless it has been idle meanwhile:
kernels on a device do not wait for a core.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils

from asynctile.execute.workers import calls, native
from asynctile.execute.workers.layout import Block, layout, native_of
from asynctile.execute.workers.native import CLOCK_MONOTONIC
from asynctile.kernels.cpu.jit import intrinsic
from asynctile.measure.calls import Call, calls_s
from asynctile.program.operation import Operation

_NANOSLEEP, _GETTID = "bench_nanosleep", "bench_gettid"
_SLACK, _PR_SET_TIMERSLACK = 1, 29
_INT = ir.IntType(64)
_libc = ctypes.CDLL(None, use_errno=True)
for _name in (_NANOSLEEP, _GETTID):
    llvm.add_symbol(_name, ctypes.cast(getattr(_libc, _name.removeprefix("bench_")), ctypes.c_void_p).value)
#: By thread: seconds by which its sleeps have taken too long, and when the last one ended.
THREADS = 4096
LATE = np.zeros((THREADS, 2))
LATE_AT = LATE.ctypes.data


@intrinsic
def _nanosleep(typing: Any, nanoseconds: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        billion = ir.Constant(_INT, 10**9)
        spec = cgutils.alloca_once(builder, ir.LiteralStructType([_INT, _INT]))
        builder.store(builder.sdiv(args[0], billion), cgutils.gep_inbounds(builder, spec, 0, 0))
        builder.store(builder.srem(args[0], billion), cgutils.gep_inbounds(builder, spec, 0, 1))
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.IntType(32), [_INT, _INT]), _NANOSLEEP)
        return builder.call(function, [builder.ptrtoint(spec, _INT), ir.Constant(_INT, 0)])

    return types.int32(types.int64), emit


@intrinsic
def _thread(typing: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.IntType(32), []), _GETTID)
        return builder.sext(builder.call(function, []), _INT)

    return types.int64(), emit


@njit(types.void(types.int64), nogil=True)
def sleep(nanoseconds: int) -> None:
    """Sleep, less the seconds by which this thread is late."""
    began, seconds = native.clock(CLOCK_MONOTONIC), 1e-9 * nanoseconds
    late = carray(native.at(LATE_AT), (THREADS, 2), np.float64)[_thread() % THREADS]
    late_s = max(0.0, late[0] - (began - late[1]))
    if seconds > late_s:
        _nanosleep(np.int64(1e9 * (seconds - late_s)))
    late[1] = native.clock(CLOCK_MONOTONIC)
    late[0] = max(0.0, late_s + late[1] - began - seconds)


def sleep_exactly() -> None:
    """Let threads that this one starts wake up when they asked to, and not up to 50 us later."""
    _libc.prctl(_PR_SET_TIMERSLACK, _SLACK, 0, 0, 0)


def measured(operations: Iterable[Operation]) -> dict[Call, float]:
    """Return the seconds of each kind of call among the operations; the fastest try counts."""
    return calls_s(operations, min)


@contextmanager
def sleeping(seconds: Mapping[Call, float]) -> Iterator[None]:
    """Make every schedule that is prepared for workers sleep instead of compute."""
    address = native_of(sleep, (types.int64,))
    assert address is not None

    def asleep(kernel: Any, operands: Sequence[tuple[Any, Any]], params: Sequence[Any], has_number: bool) -> Block | None:
        block = layout(kernel, operands, params, has_number)
        if block is None:
            return None
        call = kernel.__name__, tuple((shape, np.dtype(dtype).name) for shape, dtype in operands), tuple(params)
        words = block.words.copy()
        words[2] = round(1e9 * seconds[call])  # the first argument: elsewhere a word of the first array that no kernel reads
        return replace(block, address=address, words=words)

    with patch.object(calls, "layout", asleep):
        yield
