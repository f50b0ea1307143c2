"""What every kind of device promises. One suite for all of them."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from asynctile.device import CpuDevice, EmulatedDevice, open_device
from asynctile.errors import DeviceError
from asynctile.handle import Handle
from asynctile.operation import HOST
from asynctile.ops import copy, sum_squares
from asynctile.storage.arena import Arena
from asynctile.storage.demand import Demand


@pytest.fixture(params=[CpuDevice, EmulatedDevice])
def device(request):
    made = request.param()
    made.start()
    yield made
    made.close()


@pytest.fixture
def slots(device):
    arena = Arena(4 * 64, evictable=True)
    for pool in arena.cut(Demand((64,), (1,), {64: 4}, "copy")):
        device.map_pool(pool)
    return [arena.pools[0].take(for_load=True) for _ in range(4)]


def array(device, slot, value=None):
    view = device.array(slot, (16,), np.float32)
    if value is not None:
        device.upload(view, np.full(16, value, np.float32), ()).wait()
    return view


def fetched(device, view):
    out = np.empty(16, np.float32)
    device.download(out, view, ()).wait()
    return out


def test_bytes_come_back_as_they_went_in(device, slots):
    views = [array(device, slot, index) for index, slot in enumerate(slots)]
    assert [fetched(device, view)[0] for view in views] == [0, 1, 2, 3]


def test_an_upload_is_a_copy(device, slots):
    source = np.ones(16, np.float32)
    view = array(device, slots[0])
    device.upload(view, source, ()).wait()
    source[:] = 7
    assert fetched(device, view)[0] == 1


def test_a_kernel_waits_for_the_events_it_is_given(device, slots):
    gate = threading.Event()
    device.kernels["hold"] = lambda *arrays: gate.wait()
    a, b = array(device, slots[0], 5), array(device, slots[1], 0)
    tiles = Handle("a", (16,)), Handle("b", (16,))
    held = device.launch(type(copy(*tiles))("hold", tiles, "rw"), (a, b), None, ())
    after = device.launch(copy(*tiles), (a, b), None, (held,))
    assert not after.done
    gate.set()
    after.wait()
    assert fetched(device, b)[0] == 5


def test_a_failing_kernel_is_carried_by_its_event(device, slots):
    def bad(*arrays):
        raise ZeroDivisionError

    device.kernels["bad"] = bad
    tiles = Handle("a", (16,)), Handle("b", (16,))
    views = array(device, slots[0], 5), array(device, slots[1], 0)
    event = device.launch(type(copy(*tiles))("bad", tiles, "rw"), views, None, ())
    event.wait()
    assert isinstance(event.error, ZeroDivisionError)


def test_an_operation_of_the_host_computes_on_host_arrays_in_order_with_copies(device, slots):
    view, below, result = array(device, slots[0], 5), np.zeros(16, np.float32), np.zeros(16, np.float32)
    tiles = Handle("a", (16,)), Handle("b", (16,))
    arrived = device.download(below, view, ())
    computed = device.launch_on_host(replace(copy(*tiles), place=HOST), (below, result), None, (arrived,))
    device.upload(view, result, (computed,), (arrived,)).wait()
    assert (result == 5).all()
    assert fetched(device, view)[0] == 5


def test_an_operation_of_the_host_reports_a_number_and_carries_its_error(device):
    a, b = np.full(16, 3, np.float32), np.zeros(16, np.float32)
    number, tile = np.zeros(1), Handle("a", (16,))
    device.launch_on_host(sum_squares(tile, number=0), (a,), number, ()).wait()
    assert number[0] == 9 * 16
    wrong = device.launch_on_host(copy(tile, Handle("b", (16,))), (a,), None, ())
    behind = device.launch_on_host(copy(tile, Handle("b", (16,))), (a, b), None, (wrong,))
    beside = device.launch_on_host(copy(tile, Handle("b", (16,))), (a, b), None, (), (wrong,))
    for event in (behind, beside):
        event.wait()
    assert isinstance(wrong.error, TypeError) and behind.error is wrong.error and beside.error is None
    assert (b == 3).all()


def test_slots_of_a_pool_do_not_overlap(device, slots):
    views = [array(device, slot, index) for index, slot in enumerate(slots)]
    array(device, slots[2], 9)
    assert [fetched(device, view)[0] for view in views] == [0, 1, 9, 3]


def test_a_link_takes_at_least_the_time_its_rate_says():
    import time

    device = EmulatedDevice(link_rate=1_000_000)
    device.start()
    arena = Arena(None, evictable=False)
    for pool in arena.cut(Demand((40_000,), (1,), {40_000: 1}, "copy")):
        device.map_pool(pool)
    view = device.array(arena.pools[0].take(for_load=True), (10_000,), np.float32)
    start = time.perf_counter()
    device.upload(view, np.ones(10_000, np.float32), ()).wait()
    assert time.perf_counter() - start >= 0.035
    device.close()


@pytest.mark.parametrize(
    ("name", "rate", "error", "says"),
    [
        ("gpu", None, DeviceError, "unknown device 'gpu': expected"),
        ("cuda:0", None, DeviceError, "'cuda:0' is not built yet"),
        ("cpu", 5, ValueError, "link_rate is for device='emulated'"),
    ],
)
def test_a_device_that_is_not_there_is_refused_in_one_sentence(name, rate, error, says):
    with pytest.raises(error, match=says):
        open_device(name, link_rate=rate)
