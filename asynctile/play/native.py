"""What compiled code calls of the system: mutex and condition, clocks, copies, an eventfd, and kernels by their address.

Each is a Numba intrinsic that names a symbol, whose address is registered with LLVM as in kernels/cpu/blas.py: code that holds
names can be cached on disk. Whose addresses kernels have is layout.py's, who calls all this worker.py. There is no inline
assembly here: it aborts the process.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, types

from asynctile.kernels.cpu.jit import intrinsic

#: Functions of the C library that compiled code calls.
_CALLED = (
    "pthread_mutex_lock", "pthread_mutex_trylock", "pthread_mutex_unlock", "pthread_cond_wait", "pthread_cond_timedwait",
    "pthread_cond_signal", "clock_gettime", "write",
)  # fmt: skip
CLOCK_MONOTONIC = 1
CLOCK_MONOTONIC_COARSE = 6
#: Words that a call by address may pass, the two first included: a call takes the smallest of these that holds its own.
WIDTHS = (16, 48, 128)
#: Real arguments that a call by address passes.
REALS = 4

_INT, _INT32, _BYTE, _REAL, _NOTHING = ir.IntType(64), ir.IntType(32), ir.IntType(8), ir.DoubleType(), ir.VoidType()
_TIMESPEC = ir.LiteralStructType([_INT, _INT])


def player_supported() -> bool:
    """Whether compiled workers can call kernels on this machine: the calling conventions of `call` are known to fit."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64") and sys.maxsize > 2**32


def _symbol(name: str) -> str:
    return f"asynctile_{name}"


if player_supported():
    _library = ctypes.CDLL(None)
    for _name in _CALLED:
        llvm.add_symbol(_symbol(_name), ctypes.cast(getattr(_library, _name), ctypes.c_void_p).value)


def _call_symbol(builder: Any, name: str, args: Any) -> Any:
    kind = ir.FunctionType(_INT32, [_INT] * len(args))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, _symbol(name)), args)


def _of_one(name: str) -> Any:
    """A function of the C library that takes an address and returns an int."""

    def typed(typing: Any, address: Any) -> Any:
        return types.int32(types.int64), lambda context, builder, signature, args: _call_symbol(builder, name, args)

    return intrinsic(typed)


lock, try_lock, unlock = _of_one("pthread_mutex_lock"), _of_one("pthread_mutex_trylock"), _of_one("pthread_mutex_unlock")
signal = _of_one("pthread_cond_signal")


@intrinsic
def wait(typing: Any, condition: Any, mutex: Any) -> Any:
    """pthread_cond_wait."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _call_symbol(builder, "pthread_cond_wait", args)

    return types.int32(types.int64, types.int64), emit


@intrinsic
def wait_until(typing: Any, condition: Any, mutex: Any, when: Any) -> Any:
    """pthread_cond_timedwait until a time of the condition's clock, in seconds; 0 unless that has come."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        condition, mutex, when = args
        seconds = builder.fptosi(when, _INT)
        rest = builder.fmul(builder.fsub(when, builder.sitofp(seconds, _REAL)), ir.Constant(_REAL, 1e9))
        place = cgutils.alloca_once(builder, _TIMESPEC)
        builder.store(seconds, cgutils.gep_inbounds(builder, place, 0, 0))
        builder.store(builder.fptosi(rest, _INT), cgutils.gep_inbounds(builder, place, 0, 1))
        return _call_symbol(builder, "pthread_cond_timedwait", [condition, mutex, builder.ptrtoint(place, _INT)])

    return types.int32(types.int64, types.int64, types.float64), emit


@intrinsic
def clock(typing: Any, which: Any) -> Any:
    """Seconds of CLOCK_MONOTONIC, which is that of time.perf_counter, or of its coarse sister, which costs less."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = cgutils.alloca_once(builder, _TIMESPEC)
        _call_symbol(builder, "clock_gettime", [args[0], builder.ptrtoint(place, _INT)])
        seconds, rest = (builder.load(cgutils.gep_inbounds(builder, place, 0, k)) for k in range(2))
        rest = builder.fmul(builder.sitofp(rest, _REAL), ir.Constant(_REAL, 1e-9))
        return builder.fadd(builder.sitofp(seconds, _REAL), rest)

    return types.float64(types.int64), emit


@intrinsic
def tell(typing: Any, eventfd: Any, one: Any) -> Any:
    """Write the 8 bytes at the address `one` to an eventfd."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _call_symbol(builder, "write", [*args, ir.Constant(_INT, 8)])

    return types.int32(types.int64, types.int64), emit


@intrinsic
def pause(typing: Any) -> Any:
    """Leave a spinning core's resources to the other thread on it; nothing where the processor has no such hint."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if platform.machine() == "x86_64":
            kind = ir.FunctionType(_NOTHING, [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def look(typing: Any, address: Any) -> Any:
    """The int64 at an address that other threads write, read anew each time."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], _INT.as_pointer()), "acquire", 8)

    return types.int64(types.int64), emit


@intrinsic
def at(typing: Any, address: Any) -> Any:
    """An address as the pointer that numba.carray makes an array of."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), emit


@intrinsic
def copy(typing: Any, target: Any, source: Any, nbytes: Any) -> Any:
    """memcpy."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, source, nbytes = args
        to, of = (builder.inttoptr(address, cgutils.voidptr_t) for address in (target, source))
        cgutils.raw_memcpy(builder, to, of, nbytes, 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


@intrinsic
def call(typing: Any, function: Any, scratch: Any, words: Any, width: Any, reals: Any) -> Any:
    """Call a function that Numba compiled, by its address; 0 or -2 if it went well.

    words, reals: addresses of `width` (one of WIDTHS, a literal) int64 and REALS float64. scratch: of two words of this thread.

    How one call fits every kernel. Numba gives a function the convention of C: `int32 f(void **result, void **exception,
    arguments)`, in which an array is spread out (meminfo, parent, nitems, itemsize, data, shape, strides) and a bool is an
    i8. By the System V ABI of x86-64 and by that of AArch64 on Linux, integers and pointers fill one row of registers and then
    slots of 8 bytes on the stack, of which a callee reads the low bytes of its own type; doubles fill another row of registers,
    whatever stands between them. So it suffices to hand over all integers in order and all doubles in order, and what is handed
    over beyond the callee's own is not looked at and cleared away by the caller. The kernel runs the very machine code that
    Python calls, without a trampoline.

    Limits: no more than REALS doubles, no float32, no complex number, no tuple by value. Elsewhere (Windows; Apple's AArch64,
    which packs the stack) this does not hold: `player_supported`. The words 0 and 1 are not read: a result and an exception go
    to `scratch`. An exception's constant record is not released by anybody; kernels raise none.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None
    count = width.literal_value

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function, scratch, words, _, reals = args
        kind = ir.FunctionType(_INT32, [_INT] * count + [_REAL] * REALS)
        of_words = builder.inttoptr(words, _INT.as_pointer())
        of_reals = builder.inttoptr(reals, _REAL.as_pointer())
        result, exception = scratch, builder.add(scratch, ir.Constant(_INT, 8))
        integers = [builder.load(builder.gep(of_words, [ir.Constant(_INT, k)])) for k in range(2, count)]
        floats = [builder.load(builder.gep(of_reals, [ir.Constant(_INT, k)])) for k in range(REALS)]
        return builder.call(builder.inttoptr(function, kind.as_pointer()), [result, exception, *integers, *floats])

    return types.int32(types.int64, types.int64, types.int64, width, types.int64), emit
