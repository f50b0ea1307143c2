"""A trial of an optional library before its first use: small products, each run twice and compared with float64.

It checks that the results are right, and that both runs give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from asynctile.device.driver import Driver
from asynctile.kernels.bf16 import from_bf16, to_bf16
from asynctile.kernels.cuda.array import Array
from asynctile.program.precision import BF16, FP32

#: Rows, inner size and columns of the products.
SHAPE = (96, 160, 224)
#: Tolerances relative to the largest expected magnitude: for bf16 results, and for float32 or TF32 results.
TOLERANCE = {BF16: 8e-3, FP32: 4e-3}

#: Called with (a, b, c, ta, tb, source, bias); returns whether the product was computed.
Product = Callable[[Array, Array, Array, bool, bool, Array | None, Array | None], bool]


def wrong_product(product: Product, memory: Driver, stream: int) -> str | None:
    """Describe the first wrong result of `product`; None if each supported combination is right and repeats bit for bit."""
    for kind, out, ta, tb, with_source, with_bias in _cases():
        try:
            results = [_run(product, memory, stream, kind, out, ta, tb, with_source, with_bias) for _ in range(2)]
        except Exception as error:  # after any error the library is not used
            return f"{type(error).__name__}: {error}"
        if results[0] is None:
            continue
        what = f"{np.dtype(kind).name} to {np.dtype(out).name}, source {with_source}, bias {with_bias}"
        if results[1] is None or not results[0][1] <= TOLERANCE[out]:
            return f"wrong results ({what})"
        if results[0][0] != results[1][0]:
            return f"results that differ from run to run ({what})"
    return None


def _cases() -> Iterator[tuple[Any, Any, bool, bool, bool, bool]]:
    for kind, out in ((BF16, FP32), (BF16, BF16), (FP32, FP32)):
        for ta, tb in ((False, False), (True, False), (False, True)):
            yield kind, out, ta, tb, False, True
            yield kind, out, ta, tb, True, True
        yield kind, out, False, False, True, False


def _run(
    product: Product, memory: Driver, stream: int, kind: Any, out: Any, ta: bool, tb: bool, with_source: bool,
    with_bias: bool,
) -> tuple[bytes, float] | None:
    """Return bits and relative error of one product of fixed random operands, or None if it was not computed."""
    rows, inner, columns = SHAPE
    random = np.random.default_rng(7)
    a = random.standard_normal((inner, rows) if ta else (rows, inner), np.float32)
    b = random.standard_normal((columns, inner) if tb else (inner, columns), np.float32)
    source, bias = random.standard_normal((rows, columns), np.float32), random.standard_normal(columns, np.float32)
    values = [_as(a, kind), _as(b, kind), _as(source, out), _as(bias, out)]
    result = np.full((rows, columns), 0xFFFF, out) if out == BF16 else np.full((rows, columns), np.nan, out)
    with ExitStack() as stack:
        arrays = [place(value, memory, stream, stack) for value in (*values, result)]
        done = product(arrays[0], arrays[1], arrays[4], ta, tb, arrays[2] if with_source else None,
                       arrays[3] if with_bias else None)  # fmt: skip
        fetch(result, arrays[4], memory, stream)
    if not done:
        return None
    left, right, added, row = (wide(value) for value in values)
    expected = (left.T if ta else left) @ (right.T if tb else right)
    expected += (added if with_source else 0.0) + (row if with_bias else 0.0)
    return result.tobytes(), float(np.max(np.abs(wide(result) - expected)) / np.max(np.abs(expected)))


def _as(values: np.ndarray, kind: Any) -> np.ndarray:
    return to_bf16(values) if kind == BF16 else values


def wide(values: np.ndarray) -> np.ndarray:
    """Convert float32 or bf16 values to float64."""
    return (from_bf16(values) if values.dtype == BF16 else values).astype(np.float64)


def place(value: np.ndarray, memory: Driver, stream: int, stack: ExitStack) -> Array:
    """Return a copy of `value` on the device, which lives as long as `stack` is open."""
    address = memory.malloc(value.nbytes)
    stack.callback(memory.free, address)
    memory.copy(address, value.ctypes.data, value.nbytes, stream)
    settle(memory, stream)
    return Array(address, value.shape, value.dtype)


def fetch(target: np.ndarray, source: Array, memory: Driver, stream: int) -> None:
    """Copy `source` into `target` after all earlier work on `stream`, and wait for it."""
    memory.copy(target.ctypes.data, source.ptr, source.nbytes, stream)
    settle(memory, stream)


def settle(memory: Driver, stream: int) -> None:
    """Wait until all work given to `stream` is done."""
    event = memory.new_event()
    memory.record(event, stream)
    memory.synchronize(event)
    memory.destroy_event(event)
