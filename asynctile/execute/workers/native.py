"""System calls from compiled code: mutex and condition, clocks, copies, an eventfd; and calls of kernels by their address.

Each is a Numba intrinsic that names a symbol. The symbol's address is registered with LLVM, as in kernels/cpu/blas.py,
because code that holds names can be cached on disk. worker.py calls them; layout.py finds the addresses of kernels.
There is no inline assembly here: it aborts the process.
"""

from __future__ import annotations

import ctypes
import platform
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
#: Numbers of words that a call by address may pass, the first two included; a call uses the smallest that holds its words.
WIDTHS = (16, 48, 128)
#: Number of float arguments that a call by address passes.
REALS = 5

_INT, _INT32, _REAL, _NOTHING = ir.IntType(64), ir.IntType(32), ir.DoubleType(), ir.VoidType()
_TIMESPEC = ir.LiteralStructType([_INT, _INT])


def _symbol(name: str) -> str:
    return f"asynctile_{name}"


_library = ctypes.CDLL(None)
for _name in _CALLED:
    llvm.add_symbol(_symbol(_name), ctypes.cast(getattr(_library, _name), ctypes.c_void_p).value)


def _call_symbol(builder: Any, name: str, args: Any) -> Any:
    kind = ir.FunctionType(_INT32, [_INT] * len(args))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, _symbol(name)), args)


def _of_one(name: str) -> Any:
    """Return an intrinsic for a function of the C library that takes an address and returns an int."""

    def typed(typing: Any, address: Any) -> Any:
        return types.int32(types.int64), lambda context, builder, signature, args: _call_symbol(builder, name, args)

    return intrinsic(typed)


lock, try_lock, unlock = _of_one("pthread_mutex_lock"), _of_one("pthread_mutex_trylock"), _of_one("pthread_mutex_unlock")
signal = _of_one("pthread_cond_signal")


@intrinsic
def wait(typing: Any, condition: Any, mutex: Any) -> Any:
    """Call pthread_cond_wait."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _call_symbol(builder, "pthread_cond_wait", args)

    return types.int32(types.int64, types.int64), emit


@intrinsic
def wait_until(typing: Any, condition: Any, mutex: Any, when: Any) -> Any:
    """Call pthread_cond_timedwait until a time of the condition's clock, in seconds. Returns 0 unless that time has come."""

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
    """Return seconds of CLOCK_MONOTONIC, the clock of time.perf_counter, or of CLOCK_MONOTONIC_COARSE, which costs less."""

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
    """Leave a spinning core's resources to the other thread on it; do nothing where the processor has no such hint."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if platform.machine() == "x86_64":
            kind = ir.FunctionType(_NOTHING, [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def look(typing: Any, address: Any) -> Any:
    """Read the int64 at an address that other threads write, anew at each call."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], _INT.as_pointer()), "acquire", 8)

    return types.int64(types.int64), emit


@intrinsic
def at(typing: Any, address: Any) -> Any:
    """Return an address as the pointer from which numba.carray makes an array."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), emit


@intrinsic
def copy(typing: Any, target: Any, source: Any, nbytes: Any) -> Any:
    """Copy `nbytes` bytes with memcpy."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, source, nbytes = args
        to, of = (builder.inttoptr(address, cgutils.voidptr_t) for address in (target, source))
        cgutils.raw_memcpy(builder, to, of, nbytes, 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


@intrinsic
def call(typing: Any, function: Any, scratch: Any, words: Any, width: Any, reals: Any) -> Any:
    """Call a function that Numba compiled, by its address. Returns 0 or -2 if it succeeded.

    words, reals: addresses of `width` int64 (one of WIDTHS, a literal) and of REALS float64.
    scratch: address of two words of this thread.

    One kind of call fits every kernel. Numba gives a function the convention of C: `int32 f(void **result, void
    **exception, arguments)`. An array is spread out (meminfo, parent, nitems, itemsize, data, shape, strides), and a
    bool is an i8. In the System V ABI of x86-64 and in that of AArch64 on Linux, integers and pointers fill one row of
    registers and then 8-byte slots on the stack. A callee reads the low bytes of its own type from a slot. Doubles fill
    another row of registers, whatever stands between them. So it is enough to pass all integers in order and all
    doubles in order. The callee does not look at surplus arguments, and the caller removes them. The kernel runs the
    same machine code that Python calls, without a trampoline.

    Limits: at most REALS doubles; no float32, complex number or tuple by value. It holds on
    Linux on x86-64 and AArch64, for which there is Numba. Words 0 and 1 are not read: result and exception
    go to `scratch`. Nobody releases the constant record of an exception, but kernels raise none.
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
