"""`asynctile info`: devices, memory tiers and libraries, as this process finds them.

Covers finding and printing them. measured.py measures this machine, bench/ what asynctile makes of it.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import psutil
import scipy.linalg  # noqa: F401  (loads the BLAS that the kernels call, so that threadpoolctl sees it)
from threadpoolctl import threadpool_info

from asynctile import __version__
from asynctile.cli.measured import measured
from asynctile.cli.terminal import print_rows, say
from asynctile.device.cupy_driver import gpu_count, open_driver
from asynctile.device.driver import OutOfMemory
from asynctile.errors import DeviceError
from asynctile.loop.thread import new_loop
from asynctile.measure.known import processor
from asynctile.storage.counts import counted
from asynctile.storage.limits import found
from asynctile.storage.sizes import format_size

__all__ = ["run"]

_LIBRARIES = (
    "numpy", "scipy", "numba", "llvmlite", "uvloop", "aiofiles", "xxhash", "safetensors", "tokenizers", "threadpoolctl",
    "matplotlib",
    "cupy-cuda12x", "cupy-cuda13x", "nvidia-cublas", "nvidia-cudnn-frontend", "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13", "torch",
)  # fmt: skip


def run(given: dict[str, Any]) -> int:
    """Print devices, tiers and libraries, and return the exit status."""
    if given.get("measure"):
        say(measured(given.get("device", "cpu"), given.get("precision", "fp32")))
        return 0
    for name in ("device", "precision"):
        if name in given:
            raise ValueError(f"--{name} says what --measure measures; add --measure, or leave it out")
    print_rows([("asynctile", __version__), *_devices(), *_tiers(), *_blas(), ("loop", _loop()), *_libraries()])
    if core := os.environ.get("OPENBLAS_CORETYPE"):
        print(f"OPENBLAS_CORETYPE={core} overrides the core that OpenBLAS detects, which can halve its "
                      "speed and changes the last bits of a result; unset it unless you need it")
    return 0


def _devices() -> list[tuple[str, str]]:
    threads = len(os.sched_getaffinity(0))
    rows = [("cpu", f"{processor() or platform.machine()}, {counted(threads, 'thread')}"),
            ("emulated", "the same processor, with its own arena and link; emulated*N: N such devices, which divide the cores")]
    return [*rows, *(row for index in range(max(gpu_count(), 1)) for row in _gpu(f"cuda:{index}"))]


def _gpu(name: str) -> list[tuple[str, str]]:
    """Return rows about a GPU, or why there is none."""
    try:
        driver = open_driver(name)
        free, total = driver.memory()
        driver.open_gemm(stream := driver.new_stream(), tf32=False)
        driver.open_attention(stream)
    except (DeviceError, OutOfMemory) as error:
        return [(name, str(error))]
    major, minor = driver.capability
    found = f"{driver.title}, compute capability {major}.{minor}, {format_size(free)} of {format_size(total)} free"
    rows = [(name, found), (f"{name} epilogues", driver.epilogues), (f"{name} attention", driver.attention)]
    driver.close_libraries()
    driver.destroy_stream(stream)
    driver.close()
    return rows


def _tiers() -> list[tuple[str, str]]:
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(".")
    limits = [(limit.what, f"{format_size(limit.left)} of {format_size(limit.nbytes)} left to this process")
              for limit in found() if not limit.is_of_machine]
    return [("RAM", f"{format_size(memory.available)} of {format_size(memory.total)} available"), *limits,
            ("disk here", f"{format_size(disk.free)} of {format_size(disk.total)} free")]


def _blas() -> list[tuple[str, str]]:
    np.ones((2, 2)) @ np.ones((2, 2))
    rows = []
    for library in threadpool_info():
        if library["user_api"] == "blas":
            core = library.get("architecture", "unknown")
            rows.append(("BLAS", f"{library['internal_api']} {library['version']}, core {core}, "
                                 f"{counted(library['num_threads'], 'thread')}, {os.path.basename(library['filepath'])}"))
    return rows


def _loop() -> str:
    loop = new_loop()
    loop.close()
    return type(loop).__module__.partition(".")[0]


def _libraries() -> list[tuple[str, str]]:
    rows = [("python", sys.version.split()[0])]
    for name in _LIBRARIES:
        try:
            rows.append((name, version(name)))
        except PackageNotFoundError:
            rows.append((name, "not installed"))
    return rows
