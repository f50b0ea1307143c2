"""The CPU's kernels: `KERNELS[operation.kernel](*arrays, *params[, number])`, one native call without the GIL each.

Importing compiles nothing. `warm` compiles every kernel for its one signature, or loads it from Numba's cache on disk;
without it a kernel does so on its first call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from asynctile.kernels.cpu import (  # noqa: F401  (each module registers its kernels)
    adamw,
    attention,
    attention_backward,
    cross_entropy,
    elementwise,
    embedding,
    gelu,
    gemm,
    layernorm,
)
from asynctile.kernels.cpu.jit import KERNELS, SIGNATURES

__all__ = ["KERNELS", "compiled", "warm"]


def warm(report: Callable[[str, int, int], None] | None = None, names: Collection[str] = KERNELS) -> None:
    """Make kernels ready to run; report(name, index, total) before each one. All take about 10 s if nothing is cached."""
    for index, name in enumerate(names):
        function = KERNELS[name]
        if report:
            report(name, index, len(names))
        for signature in SIGNATURES[name]:
            function.compile(signature)


def compiled() -> bool:
    """Whether the cache on disk seems to hold every kernel for these sources (files are looked at, not loaded)."""
    newest = max(path.stat().st_mtime for path in Path(__file__).parent.glob("*.py"))
    for name, function in KERNELS.items():
        if not function.stats.cache_path:
            return False
        module = function.py_func.__module__.rpartition(".")[2]
        indices = list(Path(function.stats.cache_path).glob(f"{module}.{name}-*.nbi"))
        if not any(index.stat().st_mtime >= newest for index in indices):
            return False
    return True
