"""Does anything work at all on this GPU? A minute, before anything is measured.

    python bench/gpu_smoke.py [--models gpt2] [--caps 0 0.25] [--batch 16] [--length 1024] [--steps 3] [--nodes 200] [--write]

It runs each kernel once, AdamW first, in float32 and bf16, and compares with float64; products of each type; the trials of
cuBLASLt and cuDNN; a graph of `--nodes` copies up, kernels and copies down on three streams: capture, launch, replay and the
device memory it takes; and steps of a model, issued and replayed. A failure is a row, and the rest goes on. After an error of
the GPU itself nothing else works, so the first such row is the one to read.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np
from gpu_common import options_of
from gpu_once import every_call, run_once
from gpu_record import Section
from gpu_replay import Measured
from gpu_rows import SMOKE, engine_name
from watched import WatchedGraphs

from asynctile.device import open_device
from asynctile.device.base import Node
from asynctile.kernels.cuda import Array
from asynctile.ops import copy
from asynctile.schedule.schedule import Kind
from asynctile.storage.tile import Tile
from tests.gpu.machine import HardMachine
from tests.kernels.test_adamw import HYPER, assert_equals_the_cpu
from tests.kernels.values import poison, random, wide

MIB = 1 << 20
#: float32 elements of a tile in the graph: 64 KiB.
ELEMENTS = 1 << 14
#: Rows, inner size and columns of the products.
PRODUCT = (512, 768, 1024)
#: Precision, types of operands and result, and the largest error against float64, relative to the largest number.
PRODUCTS = (
    ("bf16", "bf16", "f32", 1e-4), ("bf16", "bf16", "bf16", 8e-3), ("bf16", "f32", "f32", 1e-5), ("tf32", "f32", "f32", 2e-3),
)  # fmt: skip


class Smoke:
    """The rows of one table: what was tried, how it went, its seconds, and a note."""

    def __init__(self, section: Section) -> None:
        self.section = section
        self.table = section.table("smoke", "what", "how", "s", "note")
        self.failed = 0

    def tries(self, what: str, run: Callable[[], str | None]) -> None:
        """Add a row. The result of `run` is its note; an exception says how it failed."""
        start = time.perf_counter()
        try:
            note, how = run(), "works"
        except Exception as error:
            self.failed += 1
            note, how = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}", "FAILED"
        self.section.add(self.table, what, how, time.perf_counter() - start, note)
        self.section.headline("what failed of the smoke", self.failed, 0, above=False)


@contextmanager
def opened(smoke: Smoke, options: Namespace, precision: str) -> Any:
    """Open a device in this precision, and load its kernels. Yields None if it does not open, and a row says why."""
    found: list[Any] = []

    def opens() -> str:
        found.append(open_device(engine_name(options), precision=precision))
        driver = found[0].driver
        return f"{driver.title}, capability {driver.capability}, {driver.shared_nbytes >> 10} KiB shared memory for a block"

    smoke.tries(f"a device in {precision} opens", opens)
    if not found:
        yield None
        return
    device = found[0]
    smoke.tries("its libraries are tried", lambda: device.start() or said(device))
    smoke.tries("its kernels load", lambda: device.warm(None) and None)
    try:
        yield device
    finally:
        smoke.tries(f"the device in {precision} closes", lambda: device.close(10.0))


def said(device: Any) -> str:
    return f"bias: {device.driver.epilogues}; attention: {device.driver.attention}"


def kernels(smoke: Smoke, device: Any) -> None:
    """Check AdamW's bits, then every kernel in both dtypes, each failure in a row of its own."""
    machine = HardMachine(device)

    def adamw() -> str:
        w, g, m, v = (random(seed, 70, 264, scale=1e-20) for seed in range(4))
        assert_equals_the_cpu(machine, [w, g, m, np.square(v)], HYPER, True)
        return "the CPU's bits, subnormal numbers among them"

    smoke.tries("AdamW", adamw)
    for dtype in ("f32", "bf16"):
        wrong: dict[str, str] = {}

        def once(dtype: str = dtype, wrong: dict[str, str] = wrong) -> str:
            found = every_call(dtype)
            for verb, call in found.items():
                try:
                    word = run_once(machine, verb, call)
                except Exception as error:
                    word = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                if word:
                    wrong[verb] = word
            if wrong:
                raise ArithmeticError("; ".join(f"{verb}: {word}" for verb, word in wrong.items()))
            return f"{len(found)} verbs"

        smoke.tries(f"each kernel once in {dtype}", once)


def product(device: Any, kind: str, out: str, tolerance: float) -> str:
    rows, inner, columns = PRODUCT
    a, b = random(1, rows, inner, dtype=kind), random(2, inner, columns, dtype=kind)
    c = poison(rows, columns, dtype=out)
    HardMachine(device).run("gemm", [a, b, c], (False, False, False))
    expected = wide(a) @ wide(b)
    error = float(np.max(np.abs(wide(c) - expected)) / np.max(np.abs(expected)))
    if not error <= tolerance:
        raise ArithmeticError(f"an error of {error:.1e} of the largest number, at most {tolerance:.0e} is allowed")
    return f"an error of {error:.1e} of the largest number"


def three_streams(device: Any, count: int) -> str:
    """Record a graph whose branches wait for each other, and replay it with other numbers each time."""
    driver, tile = device.driver, Tile("tile", (ELEMENTS,))
    graphs, addresses = WatchedGraphs(driver), [driver.malloc(tile.nbytes) for _ in range(2 * count)]
    there = [Array(address, tile.shape, tile.dtype) for address in addresses]
    here = [device.numbers(ELEMENTS // 2).view(np.float32) for _ in range(2 * count)]
    nodes: list[Node] = []
    for index in range(count):
        first, second = index, count + index
        nodes += [
            Node(Kind.UPLOAD, tile, (there[first], here[first]), None, ()),
            Node(Kind.OPERATION, copy(tile, Tile("other", tile.shape)), (there[first], there[second]), None, (3 * index,)),
            Node(Kind.DOWNLOAD, tile, (here[second], there[second]), None, (3 * index + 1,)),
        ]
    before = driver.memory()[0]
    graph = device.recorder.record(nodes)
    gone, spent = before - driver.memory()[0], []
    for value in range(1, 6):
        for index in range(count):
            here[index][:] = value * 1000 + index
        start = time.perf_counter()
        event = device.recorder.replay(graph)
        event.wait()
        spent.append(time.perf_counter() - start)
        if event.error is not None:
            raise event.error
        wrong = [index for index in range(count) if not (here[count + index] == value * 1000 + index).all()]
        if wrong:
            raise ArithmeticError(f"replay {value}: {len(wrong)} of {count} tiles did not come back, the first is {wrong[0]}")
    device.recorder.forget(graph)
    for address in addresses:
        driver.free(address)
    launches = [1e6 * seconds for _, seconds in graphs.launched]
    return (f"{3 * count} nodes: capture {graphs.capture_s:.3f} s, of it ready to launch {graphs.instantiate_s:.3f} s; "
            f"{gone / MIB:.1f} MiB; first launch {launches[0]:.0f} us, later {statistics.median(launches[1:]):.0f} us; "
            f"replay {1e6 * statistics.median(spent[1:]):.0f} us")  # fmt: skip


async def main(options: Namespace) -> None:
    section = Section("smoke", __doc__, options)
    smoke = Smoke(section)
    for precision in ("bf16", "tf32"):
        with opened(smoke, options, precision) as device:
            if device is None:
                continue
            if precision == "bf16":
                kernels(smoke, device)
            for of, kind, out, tolerance in PRODUCTS:
                if of == precision:
                    run = lambda: product(device, kind, out, tolerance)  # noqa: B023, E731
                    smoke.tries(f"a product of {kind} to {out} in {precision}", run)
            if precision == "bf16":
                smoke.tries("a graph on three streams", lambda: three_streams(device, options.nodes))
    measured = Measured(section, options)
    for name in options.models:
        for share in options.caps:
            await measured.row(name, share)
    section.end()


if __name__ == "__main__":
    asyncio.run(main(options_of(__doc__, SMOKE)))
