"""asynctile's CUDA kernels compiled for the CPU: `library().run` takes the arguments of cuLaunchKernel.

g++ compiles the sources after on_cpu.h, once for each state of them, into a folder of the user's cache.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from asynctile.device.cupy_driver import KERNEL
from asynctile.kernels.cuda import parts
from tests.alone import alone

HERE = Path(__file__).parent
FLAGS = (
    "-std=c++17", "-O2", "-shared", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE",
    "-fno-stack-protector", "-fsanitize=alignment,bounds", "-Wall", "-Werror", "-Wno-unknown-pragmas",
    "-Wno-unused-function", "-Wno-sign-compare", "-Wno-psabi",
)  # fmt: skip
#: Limits that every GPU enforces on cuLaunchKernel, or one with 227 KiB of shared memory for a block.
LIMITS = (2**31 - 1, 65535, 65535, 1024, 1024, 64)
THREADS, SHARED = 1024, 227 << 10


def missing() -> str:
    """Return why kernels cannot be compiled for this machine's CPU, or ""."""
    if sys.platform != "linux":
        return "CUDA kernels run on a CPU under Linux only"
    return "" if shutil.which("g++") else "there is no g++ to compile CUDA kernels for the CPU"


def source(files: list[Path]) -> str:
    """Return one C++ source of shim, kernels and trampolines, with the tensor cores of on_cpu_mma.h instead of mma.cuh."""
    mma = HERE / "on_cpu_mma.h"
    files = [HERE / "on_cpu.h", *(mma if path.name == "mma.cuh" else path for path in files)]
    text = "".join(f'#line 1 "{path}"\n{path.read_text()}\n' for path in files)
    return text + '#line 1 "trampolines"\n' + "".join(map(trampoline, KERNEL.findall(text)))


def trampoline(name: str) -> str:
    """Return the source of a function that calls a kernel with arguments given as pointers."""
    return (
        f"static void call_{name}(void **values) {{ on_cpu::call({name}, values); }}\n"
        f'extern "C" const char *run_{name}(const unsigned *shape, size_t shared, void **values) '
        f"{{ return on_cpu::run(call_{name}, shape, shared, values); }}\n"
    )


class Library:
    """Compiled kernels, whose threads run in `order`: "forward", "reversed" or that of a seed; results are the same."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._lock = threading.Lock()
        self.order("forward")

    def order(self, order: str | int) -> None:
        """Set the order in which the threads of a block run: "forward", "reversed", or shuffled by a seed."""
        kind, seed = ({"forward": 0, "reversed": 1}[order], 0) if isinstance(order, str) else (2, order)
        with self._lock:
            self._library.set_order(kind, ctypes.c_uint64(seed))

    def run(self, kernel: str, grid: tuple[int, ...], block: tuple[int, ...], shared: int, address: int) -> None:
        """Run a kernel to its end. grid, block: one to three sizes. address: of an array of pointers to the arguments.

        Raises ValueError for a launch that a driver would refuse, RuntimeError for a kernel's mistakes.
        """
        shape = (*grid, *(1,) * (3 - len(grid)), *block, *(1,) * (3 - len(block)))
        fits = all(0 < size <= limit for size, limit in zip(shape, LIMITS, strict=True))
        if not fits or shape[3] * shape[4] * shape[5] > THREADS or not 0 <= shared <= SHARED:
            raise ValueError(f"{kernel}: no GPU launches grid {grid}, block {block}, {shared} bytes of shared memory")
        try:
            run = self._library[f"run_{kernel}"]
        except AttributeError:
            raise ValueError(f"there is no kernel {kernel}") from None
        run.restype = ctypes.c_char_p
        with self._lock:
            message = run((ctypes.c_uint * 6)(*shape), ctypes.c_size_t(shared), ctypes.c_void_p(address))
        if message:
            raise RuntimeError(f"{kernel}, grid {grid}, block {block}: {message.decode()}")


def build(files: list[Path]) -> Library:
    """Compile sources, or find them compiled. Raises RuntimeError with the messages of g++."""
    text = source(files)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "asynctile" / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (hashlib.sha256("\n".join((text, *FLAGS)).encode()).hexdigest()[:32] + ".so")
    with alone(folder / "compiling"):
        if not path.exists():
            _compile(text, path)
    return Library(path)


def _compile(text: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        made = Path(work) / "kernels.so"
        command = ["g++", *FLAGS, "-x", "c++", "-", "-o", str(made)]
        done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(f"g++ failed on the kernels:\n{done.stderr}")
        made.replace(path)


@functools.cache
def library() -> Library:
    """Return the kernels of this checkout."""
    return build(parts())
