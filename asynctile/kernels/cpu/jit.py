"""The compilation of CPU kernels: one Numba function each, with explicit signatures, serial, without the GIL, cached on disk.

Covers the decorators and the table that `warm` walks. The arithmetic is in the file of each kernel. Importing these modules
compiles nothing.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from numba import extending, njit, types

from asynctile.kernels.cpu.locator import keep
from asynctile.storage.private import alone

ROW = types.float32[::1]  # (C,)
TILE = types.float32[:, ::1]  # (R, C)
HALF = types.uint16[:, ::1]  # (R, C), bf16
TOKENS = types.int32[::1]  # (R,)
NUMBER = types.float64[::1]  # (1,)
FLAG, COUNT, REAL = types.boolean, types.int64, types.float64

#: Numba's decorator fills the first parameter of the function it decorates, which type checkers cannot know.
intrinsic: Any = extending.intrinsic

#: Allows fusing a multiplication with an addition; for elementwise arithmetic.
FUSE = {"contract"}
#: Also allows reordering sums, which a vectorized reduction needs. Never nnan or ninf: a NaN must come out.
REDUCE = {"contract", "reassoc"}

#: All and only the functions that devices call, under the names that operations use.
KERNELS: dict[str, Any] = {}
#: Functions of modules above this one that run kernels or plan, by module and name. They are compiled and cached like kernels.
LOOPS: dict[str, Any] = {}
#: The argument types that each kernel and loop is compiled for.
SIGNATURES: dict[str, tuple[tuple[Any, ...], ...]] = {}


def kernel(*signatures: tuple[Any, ...], fastmath: Any = False) -> Callable[[Callable[..., None]], Any]:
    """Register a kernel under its function's name for these argument types."""

    def register(function: Callable[..., None]) -> Any:
        for signature in signatures:
            if len(signature) != len(inspect.signature(function).parameters):
                raise TypeError(f"{function.__name__}: {len(signature)} types do not fit its parameters")
        dispatcher = njit(nogil=True, fastmath=fastmath, error_model="numpy")(function)
        keep(dispatcher)
        KERNELS[function.__name__] = dispatcher
        SIGNATURES[function.__name__] = signatures
        return dispatcher

    return register


def loop(*signatures: tuple[Any, ...], nogil: bool = True) -> Callable[[Callable[..., Any]], Any]:
    """Register a function of a module above this one, to be compiled and cached like a kernel."""

    def register(function: Callable[..., Any]) -> Any:
        dispatcher = njit(nogil=nogil, error_model="numpy")(function)
        keep(dispatcher)
        name = f"{function.__module__}.{function.__name__}"
        LOOPS[name], SIGNATURES[name] = dispatcher, signatures
        return dispatcher

    return register


def _dispatcher(name: str) -> Any:
    """Return a kernel or a loop by its name. Imports the loop's module, which a process that compiles has not done."""
    if name not in KERNELS and name not in LOOPS:
        importlib.import_module(name.rpartition(".")[0])
    return KERNELS[name] if name in KERNELS else LOOPS[name]


def prepare(name: str) -> None:
    """Make a kernel or a loop ready to run: load it from the cache, or compile it and cache it."""
    dispatcher = _dispatcher(name)
    for signature in SIGNATURES[name]:
        dispatcher.compile(signature)


def prepare_alone(name: str) -> None:
    """Do the same while no other process compiles into that folder.

    Of several processes that start at once, one compiles each kernel.
    """
    folder = _dispatcher(name).stats.cache_path
    with nullcontext() if folder is None else alone(Path(folder)):
        prepare(name)


def is_ready(name: str) -> bool:
    """Return whether this process need not compile the kernel: it has compiled it, or the cache on disk has it for this CPU.

    Loads nothing. Numba has no public way to ask.
    """
    dispatcher = _dispatcher(name)
    missing = [signature for signature in SIGNATURES[name] if signature not in dispatcher.overloads]
    if not missing or not has_cache(name):
        return not missing
    cache, codegen = dispatcher._cache, dispatcher.targetctx.codegen()
    index = cache._cache_file._load_index()
    files = [index.get(cache._index_key(signature, codegen)) for signature in missing]
    return all(file is not None and os.path.exists(cache._cache_file._data_path(file)) for file in files)


def has_cache(name: str) -> bool:
    """Return whether there is a folder for the kernel's machine code."""
    return _dispatcher(name).stats.cache_path is not None


def cache_folder() -> Path | None:
    """Return the folder of machine code; None where no folder can be written."""
    paths = {dispatcher.stats.cache_path for dispatcher in KERNELS.values()} - {None}
    return Path(min(paths)) if paths else None


def inline(fastmath: Any = False) -> Callable[[Callable[..., Any]], Any]:
    """Compile a part of kernels that LLVM always inlines: it vectorizes in the caller but keeps its own `fastmath`."""
    return njit(nogil=True, fastmath=fastmath, error_model="numpy", forceinline=True)


def piece(fastmath: Any = False) -> Callable[[Callable[..., Any]], Any]:
    """Compile a longer part of kernels, which LLVM calls or inlines as it chooses."""
    return njit(nogil=True, fastmath=fastmath, error_model="numpy")
