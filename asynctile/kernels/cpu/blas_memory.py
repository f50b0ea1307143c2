"""OpenBLAS's work memory, mapped for each thread before its first product.

OpenBLAS maps one buffer per product that ever ran at the same time, and keeps the buffers. If the system refuses one, for
example under `ulimit -v`, OpenBLAS retries for ever at full load or ends the process. So `hold` maps the buffers before new
threads multiply. NumPy has an OpenBLAS of its own. No kernel calls it, but drawing a run's charts does, in one thread.
"""

from __future__ import annotations

import ctypes
import os
import threading

from numpy.linalg import _umath_linalg
from scipy.linalg import cython_blas

from asynctile.storage.limits import expect_room, libraries

#: The size of a buffer in OpenBLAS 0.3, one for each product that runs at the same time.
PIECE_NBYTES = 32 << 20
#: The libraries that the kernels' products call (blas.py) and that NumPy calls; each leads to its OpenBLAS.
_KERNELS, _NUMPY = ctypes.CDLL(cython_blas.__file__), ctypes.CDLL(_umath_linalg.__file__)
#: Every build of OpenBLAS has places for this many buffers. Beyond it OpenBLAS complains, so further ones are left to OpenBLAS.
_MOST = 48
#: Reentrant, because the garbage collector may end a player at any point.
_lock = threading.RLock()
_threads = _mapped = 0


def hold(threads: int) -> None:
    """Map memory for `threads` more threads that may multiply at once, until `let_go`.

    Raises BudgetError if memory is short.
    """
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
    """Undo one `hold`. The memory stays mapped for later holds."""
    global _threads
    with _lock:
        _threads -= threads


def unmapped_nbytes() -> int:
    """Return the bytes that an engine will still map: for one thread per core of its device, and as many that play."""
    wanted = min(2 * len(os.sched_getaffinity(0)), _MOST)
    return (max(0, wanted - _mapped) + (not _mapped)) * PIECE_NBYTES


def _map(library: ctypes.CDLL, count: int) -> None:
    """Take `count` buffers at once and give them back. Does nothing if the library is not OpenBLAS."""
    take, give = (getattr(library, f"blas_memory_{verb}", None) for verb in ("alloc", "free"))
    if take is None or give is None:
        return
    take.argtypes, take.restype, give.argtypes, give.restype = [ctypes.c_int], ctypes.c_void_p, [ctypes.c_void_p], None
    for piece in [take(0) for _ in range(count)]:
        give(piece)


def _start_anew() -> None:
    """Reset the counters in a forked child, where no thread multiplies."""
    global _lock, _threads
    _lock, _threads = threading.RLock(), 0


libraries.append(unmapped_nbytes)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
