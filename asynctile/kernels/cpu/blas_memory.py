"""The memory that OpenBLAS works in: mapped for each thread that multiplies, before its first product.

OpenBLAS maps a piece for as many products as ever ran at once, and keeps them. Where the system refuses one, as under
`ulimit -v`, it tries again for ever, with the process at full load, or ends it. So threads that are to multiply are told of
here first. NumPy brings an OpenBLAS of its own: no kernel calls it, but what draws a run does, in one thread.
"""

from __future__ import annotations

import ctypes
import os
import threading

from numpy.linalg import _umath_linalg
from scipy.linalg import cython_blas

from asynctile.storage.limits import expect_room, libraries

#: Of OpenBLAS 0.3, for each product that runs beside others.
PIECE_NBYTES = 32 << 20
#: What the kernels' products call (blas.py), and through it the library that does them.
_KERNELS, _NUMPY = ctypes.CDLL(cython_blas.__file__), ctypes.CDLL(_umath_linalg.__file__)
#: For so many it has places in all builds; with more it complains, and these are left to it.
_MOST = 48
#: Reentrant, since the collector may end a player anywhere.
_lock = threading.RLock()
_threads = _mapped = 0


def hold(threads: int) -> None:
    """So many more threads may multiply at the same time, until `let_go`. BudgetError if there is no memory for that."""
    global _threads, _mapped
    with _lock:
        wanted = min(_threads + threads, _MOST)
        if wanted > _mapped:
            expect_room((wanted + 1) * PIECE_NBYTES, f"products in {wanted} threads at once")
            _map(_KERNELS, wanted)
            _map(_NUMPY, 1)
            _mapped = wanted
        _threads += threads


def let_go(threads: int) -> None:
    """Undo one `hold`. Their memory stays for the next ones."""
    global _threads
    with _lock:
        _threads -= threads


def unmapped_nbytes() -> int:
    """What an engine will still take: a thread a core of its device, and one that plays."""
    wanted = min(2 * len(os.sched_getaffinity(0)), _MOST)
    return (max(0, wanted - _mapped) + (not _mapped)) * PIECE_NBYTES


def _map(library: ctypes.CDLL, count: int) -> None:
    """Take so many pieces at once, and give them back. Nothing where another library multiplies."""
    take, give = (getattr(library, f"blas_memory_{verb}", None) for verb in ("alloc", "free"))
    if take is None or give is None:
        return
    take.argtypes, take.restype, give.argtypes, give.restype = [ctypes.c_int], ctypes.c_void_p, [ctypes.c_void_p], None
    for piece in [take(0) for _ in range(count)]:
        give(piece)


def _start_anew() -> None:
    """In a forked child no thread multiplies."""
    global _lock, _threads
    _lock, _threads = threading.RLock(), 0


libraries.append(unmapped_nbytes)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
