"""The rates of this machine's cores: a short probe of matrix products, of AdamW in RAM and of copies.

It calls the kernels that operations use, and needs no engine, except that BLAS is limited to one thread. known.py keeps
results from earlier starts; rates.py probes devices and links.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from asynctile.kernels.cpu import KERNELS
from asynctile.ops.adamw import HYPER
from asynctile.schedule.rates import CORES, Rates
from asynctile.storage.limits import spare_memory
from asynctile.storage.sizes import parse_size

#: Edge of the matrices, and number of products per core in one try: about ten milliseconds.
EDGE, PRODUCTS = 256, 24
#: AdamW works on so many times the size of the caches, within these limits in bytes, on all cores together.
BEYOND_CACHES, LEAST_NBYTES, MOST_NBYTES = 4, 64 << 20, 256 << 20
#: So many times that much RAM must be spare, or nothing is measured.
SPARE = 4
#: Tries of each probe. The fastest counts, since other work on the machine slows some of them.
TRIES = 5
#: Bytes that AdamW moves per parameter (w, m and v in and out, g in), and bytes that it keeps per parameter.
UPDATE_NBYTES, STATE_NBYTES = 28, 16


def measure_cores() -> Rates | None:
    """Measure all cores of this process; return None if there are no threads or not enough RAM for that.

    Blocks for some tenths of a second. Rates that are not measured, such as the disk's, are the assumed ones.
    """
    cores = len(os.sched_getaffinity(0))
    nbytes = min(max(LEAST_NBYTES, BEYOND_CACHES * caches_nbytes()), MOST_NBYTES)
    if spare_memory() < SPARE * nbytes:
        return None
    try:
        with ThreadPoolExecutor(cores) as pool:
            flops_per_s = 2 * EDGE**3 * PRODUCTS * cores / _seconds(pool, [_products] * cores)
            parts = list(pool.map(_states, [nbytes // STATE_NBYTES // cores] * cores))
            parameters = sum(part[0].size for part in parts)
            updated_s = _seconds(pool, [lambda part=part: _update(part) for part in parts])  # type: ignore[misc]
            copied_s = _seconds(pool, [lambda part=part: _copy(part) for part in parts])  # type: ignore[misc]
    except (RuntimeError, MemoryError):  # RuntimeError: a thread is refused
        return None
    updated_per_s, copied_per_s = UPDATE_NBYTES * parameters / updated_s, 8 * parameters / copied_s
    # A memory-bound operation reads and writes at AdamW's rate. Cores do the copies of an emulated link.
    return replace(CORES, flops_per_s=flops_per_s, memory_per_s=updated_per_s, updated_per_s=updated_per_s,
                   copied_per_s=copied_per_s).limited(copied_per_s)  # fmt: skip


def caches_nbytes(cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return the size of all caches of the machine's highest level together; 0 where the system does not tell.

    A cache that several CPUs share counts once. A CPU without a cache of that level adds nothing.
    """
    found: dict[tuple[int, str], int] = {}
    try:
        for cache in cpus.glob("cpu[0-9]*/cache/index[0-9]*"):
            level, shared, size = ((cache / name).read_text().strip() for name in ("level", "shared_cpu_list", "size"))
            found[int(level), shared] = parse_size(size + "iB")
    except (OSError, ValueError):
        return 0
    last = max((level for level, _ in found), default=0)
    return sum(nbytes for (level, _), nbytes in found.items() if level == last)


def _seconds(pool: ThreadPoolExecutor, works: list[Callable[[], None]]) -> float:
    """Return the least time that all of these take side by side, as CPU time of the slowest: others may use the cores, too."""

    def spent(work: Callable[[], None]) -> float:
        began = time.thread_time()
        work()
        return time.thread_time() - began

    return min(max(pool.map(spent, works)) for _ in range(TRIES))


def _products() -> None:
    a, b = np.ones((2, EDGE, EDGE), np.float32)
    c = np.empty((EDGE, EDGE), np.float32)
    for _ in range(PRODUCTS):
        KERNELS["gemm"](a, b, c, False, False, False)


def _states(parameters: int) -> list[np.ndarray]:
    """Return w, g, m and v, touched first by the thread that uses them first."""
    return [np.ones(parameters, np.float32) for _ in range(STATE_NBYTES // 4)]


def _update(part: list[np.ndarray]) -> None:
    hyper = np.array([1, 0.9, 0.1, 0.95, 0.05, 1, 1e-3, 1, 1e-8], np.float32)
    assert hyper.size == HYPER
    KERNELS["adamw"](*part, hyper, True, 0, np.zeros(1))


def _copy(part: list[np.ndarray]) -> None:
    w, g, m, v = part
    np.copyto(w, m)
    np.copyto(g, v)
