"""How a CPU kernel is compiled: one Numba function, explicit signatures, serial, without the GIL, cached on disk.

Covers the decorators and the table that `warm` walks; the arithmetic is in the file of each verb.
Nothing is compiled when these modules are imported.
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

#: Numba's decorator fills the first parameter of what it decorates, which type checkers cannot know.
intrinsic: Any = extending.intrinsic

#: May fuse a multiplication with an addition; for elementwise arithmetic.
FUSE = {"contract"}
#: May also reorder sums, which a vectorised reduction needs. Never nnan or ninf: a NaN has to come out.
REDUCE = {"contract", "reassoc"}

#: All and only the functions that devices call, by the name that operations use.
KERNELS: dict[str, Any] = {}
#: What runs kernels and is compiled and kept like them, by its module and name: it stands in rooms above this one.
LOOPS: dict[str, Any] = {}
#: The argument types each of them is compiled for.
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
    """Register a function of another room that has to do with running kernels, to be compiled and kept like one."""

    def register(function: Callable[..., Any]) -> Any:
        dispatcher = njit(nogil=nogil, error_model="numpy")(function)
        keep(dispatcher)
        name = f"{function.__module__}.{function.__name__}"
        LOOPS[name], SIGNATURES[name] = dispatcher, signatures
        return dispatcher

    return register


def _dispatcher(name: str) -> Any:
    """A kernel by its name, or a loop, whose module a process that compiles has not imported."""
    if name not in KERNELS and name not in LOOPS:
        importlib.import_module(name.rpartition(".")[0])
    return KERNELS[name] if name in KERNELS else LOOPS[name]


def prepare(name: str) -> None:
    """Make a kernel or a loop ready to run: loaded from the cache, or compiled and kept there."""
    dispatcher = _dispatcher(name)
    for signature in SIGNATURES[name]:
        dispatcher.compile(signature)


def prepare_alone(name: str) -> None:
    """The same, while no other process compiles into that folder: of several that start at once, one compiles each kernel."""
    folder = _dispatcher(name).stats.cache_path
    with nullcontext() if folder is None else alone(Path(folder)):
        prepare(name)


def is_ready(name: str) -> bool:
    """Whether this process has nothing to compile for it: it has done so, or the cache on disk holds it for this CPU.

    Nothing is loaded. Numba has no public way to ask.
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
    """Whether there is a folder for its machine code."""
    return _dispatcher(name).stats.cache_path is not None


def cache_folder() -> Path | None:
    """Where machine code is kept; None where no folder can be written."""
    paths = {dispatcher.stats.cache_path for dispatcher in KERNELS.values()} - {None}
    return Path(min(paths)) if paths else None


def inline(fastmath: Any = False) -> Callable[[Callable[..., Any]], Any]:
    """A piece of kernels: always inlined by LLVM, so that it vectorises in the caller but keeps its own `fastmath`."""
    return njit(nogil=True, fastmath=fastmath, error_model="numpy", forceinline=True)


def piece(fastmath: Any = False) -> Callable[[Callable[..., Any]], Any]:
    """A longer piece of kernels, called or inlined as LLVM likes."""
    return njit(nogil=True, fastmath=fastmath, error_model="numpy")
