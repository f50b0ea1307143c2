"""Times on a GPU whose clock is known: what is divided by what, and what is given back.

tests/cli/test_measured.py measures a GPU of threads as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from asynctile.device.cuda import CudaDevice
from asynctile.measure import gpu_times
from asynctile.measure.calls import call_of, operand
from asynctile.measure.gpu_times import GpuTimes
from asynctile.ops import gemm, sum_squares
from asynctile.program.operation import Operation
from asynctile.program.precision import BF16
from asynctile.storage.tile import Tile
from tests.cuda.idle import IdleDriver

#: Seconds of a kernel and of a graph, and bytes a second of copies.
KERNEL_S, GRAPH_S, COPIED_PER_S = 1e-3, 1e-2, 1e9


class TickingDriver(IdleDriver):
    """An idle GPU whose events have times: each kernel of a graph, each graph and each copy adds its own.

    freed: addresses that were freed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.at: dict[int, float] = {}
        self.graphs: list[int] = []
        self.given: dict[int, int] = {}

    def malloc(self, nbytes: int) -> int:
        address = super().malloc(nbytes)
        self.given[address] = nbytes
        return address

    def free(self, address: int) -> None:
        del self.given[address]

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        super().copy(target, source, nbytes, stream)
        self.now += nbytes / COPIED_PER_S

    def launch_graph(self, graph: int, stream: int) -> None:
        self.graphs.append(sum(self.captured[graph - 1].values()))
        self.now += GRAPH_S + KERNEL_S * self.graphs[-1]

    def record(self, event: int, stream: int) -> None:
        super().record(event, stream)
        self.at[event] = self.now

    def elapsed_s(self, start: int, end: int) -> float:
        return self.at[end] - self.at[start]


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    device = CudaDevice(TickingDriver())
    device.start()
    yield device
    device.close()


def driver_of(device: CudaDevice) -> TickingDriver:
    assert isinstance(device.driver, TickingDriver)
    return device.driver


def product(edge: int) -> Operation:
    return gemm(*(Tile(name, (edge, edge)) for name in "abc"))


def test_rates_of_copies_count_each_way_and_twice_within_the_memory(device: CudaDevice) -> None:
    times = GpuTimes(device)
    assert times.up_per_s() == pytest.approx(COPIED_PER_S) and times.down_per_s() == pytest.approx(COPIED_PER_S)
    assert times.passed_per_s(device) == pytest.approx(COPIED_PER_S)
    assert times.memory_per_s() == pytest.approx(2 * COPIED_PER_S)


def test_the_smallest_operation_and_a_graph_have_times_of_their_own(device: CudaDevice) -> None:
    times = GpuTimes(device)
    assert times.operation_s() == pytest.approx(KERNEL_S + GRAPH_S / gpu_times.SMALLEST)
    assert times.graph_s() == pytest.approx(GRAPH_S, rel=0.01)


def test_a_kind_of_call_is_measured_once_over_operands_that_no_cache_holds(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_times, "APART", 1 << 20)
    wide, narrow, count = product(256), product(16), (1 << 20) // (3 * 4 * 256**2) + 1
    found = GpuTimes(device).calls_s([wide, narrow, wide])
    assert count < gpu_times.FEWEST < gpu_times.MOST < (1 << 20) // (3 * 4 * 16**2)
    assert found == pytest.approx({
        call_of(wide): KERNEL_S + GRAPH_S / gpu_times.FEWEST, call_of(narrow): KERNEL_S + GRAPH_S / gpu_times.MOST,
    })  # fmt: skip
    assert driver_of(device).graphs == [*[gpu_times.FEWEST] * (1 + gpu_times.TRIES), *[gpu_times.MOST] * (1 + gpu_times.TRIES)]


def test_memory_and_graphs_are_given_back(device: CudaDevice) -> None:
    driver = driver_of(device)
    before = dict(driver.given)
    GpuTimes(device).calls_s([product(16), sum_squares(Tile("x", (16, 16)), number=0, padding=0)])
    assert driver.given == before and driver.calls["destroy_graph"] == 2


def test_operands_are_numbers_that_products_take_as_long_for_as_for_real_ones() -> None:
    assert 0.4 < operand((300, 300), np.float32).mean() < 0.6
    assert len(np.unique(operand((64, 64), BF16))) > 100
    assert not operand((64,), np.int32).any()
