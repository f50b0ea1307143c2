"""The CPU's kernels: `KERNELS[operation.kernel](*arrays, *params[, number])`, each one native call without the GIL.

Importing this module compiles nothing. `warm` loads every kernel from Numba's cache on disk, after a child process has filled
it. A kernel that is not warmed compiles on its first call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from asynctile.interpreter import interpreter
from asynctile.kernels.cpu import (  # noqa: F401  (each module registers its kernels)
    adamw,
    attention,
    attention_backward,
    attention_page,
    cross_entropy,
    elementwise,
    embedding,
    gelu,
    gemm,
    gemm_rows,
    layernorm,
    rmsnorm,
    rope,
    swiglu,
)
from asynctile.kernels.cpu.compiler import compile_apart
from asynctile.kernels.cpu.jit import KERNELS, LOOPS, cache_folder, has_cache, is_ready, prepare

__all__ = ["KERNELS", "cache_folder", "warm"]


def warm(
    report: Callable[[str, int, int], None] | None = None,
    names: Collection[str] | None = None,
    stop: threading.Event | None = None,
) -> bool:
    """Make kernels ready to run; call report(name, ready, total) before each compile. Compiling all takes about 40 s.

    names: the kernels; None for all kernels and for the compiled loops of all imported modules. A child process compiles
    (compiler.py) if a folder can keep the results, otherwise this process does.

    stop: any thread may set it meanwhile. `warm` then returns False soon, and no child is left. Raises DeviceError if the child
    was killed.
    """
    stop = threading.Event() if stop is None else stop
    names = [*KERNELS, *LOOPS] if names is None else names
    missing = [name for name in names if not is_ready(name)]
    ready = len(names) - len(missing)

    def begun(name: str) -> None:
        if report:
            report(name, ready + missing.index(name), len(names))

    python, kept = interpreter(), [name for name in missing if has_cache(name)]
    if python is not None and kept:
        compile_apart(python, kept, begun, stop)
    for name in names:
        if stop.is_set():
            return False
        if name in missing and not is_ready(name):
            begun(name)
        prepare(name)
    return True
