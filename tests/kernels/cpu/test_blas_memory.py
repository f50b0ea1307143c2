"""The memory of products, in separate processes: OpenBLAS keeps what it has mapped, and a limit cannot be taken back."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.settle import HANG_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much address space there is")

START = """
import resource
from asynctile.errors import BudgetError
from asynctile.kernels.cpu import blas_memory

def size():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmSize"))

def leave(nbytes):
    resource.setrlimit(resource.RLIMIT_AS, (size() + nbytes, size() + nbytes))

before, piece = size(), blas_memory.PIECE_NBYTES
"""


def run(program: str) -> None:
    """Run a program without BLAS threads: each maps a buffer as it starts, on a busy machine after `before` is read."""
    command, environment = [sys.executable, "-c", START + program], {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_each_thread_maps_one_piece_however_often_threads_come_and_go() -> None:
    run("""
blas_memory.hold(3)
mapped = size() - before
assert 2 * piece <= mapped <= 4 * piece + (1 << 20), mapped  # libraries have one from their start, or none
for _ in range(3):
    blas_memory.let_go(3)
    blas_memory.hold(3)
assert size() - before == mapped
blas_memory.hold(2)
assert size() - before == mapped + 2 * piece
""")


def test_threads_that_the_system_refuses_memory_are_told_before_their_products() -> None:
    run("""
blas_memory.hold(1)
leave(4 * piece)  # two threads need three, five need six
try:
    blas_memory.hold(4)
    raise AssertionError
except BudgetError as error:
    assert "products in 5 threads at once take 192.00 MiB of address space, and ulimit -v of" in str(error), error
    assert error.floor > resource.getrlimit(resource.RLIMIT_AS)[0]
blas_memory.hold(1)
""")


def test_an_engine_without_room_for_blas_memory_does_not_open_even_with_a_cap() -> None:
    run("""
import asyncio, threading
from asynctile import Engine

leave(128 << 20)

async def main():
    engine = Engine("cpu", host_memory="16MiB")
    try:
        await engine.open()
        raise AssertionError
    except BudgetError as error:
        assert "an engine's threads and kernels take" in str(error) and "raise that limit" in str(error), error
    assert threading.enumerate() == [threading.main_thread()]

asyncio.run(main())
""")
