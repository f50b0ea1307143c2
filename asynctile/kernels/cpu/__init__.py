"""The CPU's kernels: `KERNELS[operation.kernel](*arrays, *params[, number])`, one native call without the GIL each.

Importing compiles nothing. `warm` loads every kernel from Numba's cache on disk, which a process of its own fills first;
without it a kernel is compiled on its first call.
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
)
from asynctile.kernels.cpu.compiler import compile_apart
from asynctile.kernels.cpu.jit import KERNELS, LOOPS, cache_folder, has_cache, is_ready, prepare

__all__ = ["KERNELS", "cache_folder", "warm"]


def warm(
    report: Callable[[str, int, int], None] | None = None,
    names: Collection[str] | None = None,
    stop: threading.Event | None = None,
) -> bool:
    """Make kernels ready to run; report(name, ready, total) before each one that is compiled. All take about 35 s.

    names: of kernels; without them all, and the loops that run them, of those modules that are imported.
    Where a folder can keep them a child process compiles (compiler.py), else this one. stop: may be set meanwhile, from any
    thread; False is then returned soon, and no child is left. DeviceError if the child was killed.
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
