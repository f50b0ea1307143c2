"""How long calls of kernels take on this machine's cores, each kind of call measured by itself."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import cycle, islice
from typing import Any

import numpy as np

from asynctile.blas_threads import hold_one_thread, let_go
from asynctile.kernels.bf16 import to_bf16
from asynctile.kernels.cpu import KERNELS
from asynctile.program.operation import Operation
from asynctile.program.precision import BF16

#: What decides how long a call takes: the kernel, the shape and type of each operand, and the arguments.
Call = tuple[str, tuple[tuple[tuple[int, ...], str], ...], tuple[int | float | bool, ...]]
#: Times that each kind of call is measured.
TRIES = 5


def call_of(operation: Operation) -> Call:
    """Return the kind of call that an operation is."""
    operands = tuple((tile.shape, np.dtype(tile.dtype).name) for tile in operation.operands)
    return operation.kernel, operands, operation.params


def calls_s(operations: Iterable[Operation], choose: Callable[[Sequence[float]], float], apart: int = 0) -> dict[Call, float]:
    """Return the CPU seconds that each kind of call among the operations takes on one core.

    choose: among the times of one kind of call, such as `min`. apart: calls take operands in turn from so many bytes, so that
    caches do not hold them.
    """
    different = {call_of(operation): operation for operation in operations}
    return {call: choose(_times(operation, apart)) for call, operation in different.items()}


def calls_on_all_cores_s(operations: Sequence[Operation], apart: int) -> dict[Call, float]:
    """Return the median CPU seconds of each kind of call while all cores of this process make the same calls."""
    cores = len(os.sched_getaffinity(0))
    hold_one_thread()
    try:
        with ThreadPoolExecutor(cores) as pool:
            found = list(pool.map(lambda _: calls_s(operations, statistics.median, apart), range(cores)))
    finally:
        let_go()
    return {call: statistics.median(one[call] for one in found) for call in found[0]}


def _times(operation: Operation, apart: int) -> list[float]:
    kernel = KERNELS[operation.kernel]
    nbytes = sum(tile.nbytes for tile in operation.operands)
    sets = [[operand(tile.shape, tile.dtype) for tile in operation.operands] for _ in range(1 + apart // max(nbytes, 1))]
    number = [] if operation.number is None else [np.zeros(1)]
    spent = []
    for arrays in islice(cycle(sets), max(TRIES, len(sets))):
        began = time.thread_time()
        kernel(*arrays, *operation.params, *number)
        spent.append(time.thread_time() - began)
    return spent


def operand(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Return small positive numbers, which repeat; zeros where the type is no float, since those are tokens."""
    if np.dtype(dtype) == BF16:
        return np.resize(to_bf16(_numbers()), shape)
    return np.resize(_numbers(), shape).astype(dtype) if np.dtype(dtype).kind == "f" else np.zeros(shape, dtype)


@cache
def _numbers() -> np.ndarray:
    """Return numbers that operands repeat, because drawing them takes longer than the calls."""
    return np.random.default_rng(1).random(65_521, np.float32)
