"""The contract of every kind of device, in one suite. The driver of a GPU runs on the CPU here (tests/cuda/driver.py)."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from asynctile.device import CpuDevice, CudaDevice, EmulatedDevice, open_devices
from asynctile.device.workers import Siblings
from asynctile.ops import copy, sum_squares
from asynctile.program.operation import HOST
from asynctile.storage.arena import Arena
from asynctile.storage.demand import Demand
from asynctile.storage.tile import Tile
from tests.cuda.build import missing
from tests.cuda.driver import SoftDriver


def soft_cuda():
    if why := missing():
        pytest.skip(why)
    return CudaDevice(SoftDriver(seed=1))


def one_of_two():
    return EmulatedDevice(threads=2, siblings=Siblings(2), number=1)


@pytest.fixture(params=[CpuDevice, EmulatedDevice, one_of_two, soft_cuda])
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


def holding(device, gate):
    """Return a kernel that runs until `gate` is open."""
    if isinstance(device, CudaDevice):
        return lambda on, *arrays: device.driver.hold(gate, device.streams()[0].handle)
    return lambda *arrays: gate.wait()


def test_bytes_come_back_as_they_went_in(device, slots):
    views = [array(device, slot, index) for index, slot in enumerate(slots)]
    assert [fetched(device, view)[0] for view in views] == [0, 1, 2, 3]


@pytest.mark.parametrize("device", [one_of_two, soft_cuda], indirect=True)
def test_bytes_received_from_another_device_are_a_copy(device, slots):
    source, target = array(device, slots[0], 3), array(device, slots[1])
    device.receive(target, source, ()).wait()
    array(device, slots[0], 4)
    assert fetched(device, target)[0] == 3


def test_an_upload_is_a_copy(device, slots):
    source = np.ones(16, np.float32)
    view = array(device, slots[0])
    device.upload(view, source, ()).wait()
    source[:] = 7
    assert fetched(device, view)[0] == 1


def test_a_kernel_waits_for_the_events_it_is_given(device, slots):
    gate = threading.Event()
    device.kernels["hold"] = holding(device, gate)
    a, b = array(device, slots[0], 5), array(device, slots[1], 0)
    tiles = Tile("a", (16,)), Tile("b", (16,))
    held = device.launch(type(copy(*tiles))("hold", tiles, "rw"), (a, b), None, ())
    after = device.launch(copy(*tiles), (a, b), None, (held,))
    assert not after.done
    gate.set()
    after.wait()
    assert fetched(device, b)[0] == 5


def test_work_that_waits_for_failed_work_fails_and_work_that_only_comes_after_does_not(device, slots):
    def bad(*arrays):
        raise ZeroDivisionError

    device.kernels["bad"] = bad
    tiles = Tile("a", (16,)), Tile("b", (16,))
    views = array(device, slots[0], 5), array(device, slots[1], 0)
    failed = device.launch(type(copy(*tiles))("bad", tiles, "rw"), views, None, ())
    poisoned = device.launch(copy(*tiles), views, None, (failed,))
    follower = device.launch(copy(*tiles), views, None, (), (failed,))
    for event in (poisoned, follower):
        event.wait()
    assert isinstance(poisoned.error, ZeroDivisionError)
    assert follower.error is None
    assert fetched(device, views[1])[0] == 5


def test_work_of_the_device_and_of_the_host_wait_for_each_other(device, slots):
    gate, seen = threading.Event(), []
    host = device.add_stream("host", 1)
    host.start()
    read = host.enqueue((), gate.wait, (), is_copy=True)
    source = np.ones(16, np.float32)
    a, b = array(device, slots[0]), array(device, slots[1])
    loaded = device.upload(a, source, (read,))
    tiles = Tile("a", (16,)), Tile("b", (16,))
    computed = device.launch(copy(*tiles), (a, b), None, (loaded,))
    out = np.empty(16, np.float32)
    stored = device.download(out, b, (computed,))
    written = host.enqueue((stored,), lambda: seen.append(out[0]), ())
    other = array(device, slots[2], 3)  # ready work does not wait behind work that is not
    assert not computed.done
    source[:] = 7  # the read has not run yet: it sees these bytes
    gate.set()
    written.wait()
    assert seen == [7]
    assert fetched(device, other)[0] == 3


def test_a_failed_read_of_the_host_fails_the_whole_chain_behind_it(device, slots):
    gate = threading.Event()
    host = device.add_stream("host", 1)
    host.start()

    def read():
        gate.wait()
        raise OSError("the disk is gone")

    a, b = array(device, slots[0]), array(device, slots[1])
    loaded = device.upload(a, np.ones(16, np.float32), (host.enqueue((), read, ()),))
    tiles = Tile("a", (16,)), Tile("b", (16,))
    computed = device.launch(copy(*tiles), (a, b), None, (loaded,))
    gate.set()
    computed.wait()
    assert isinstance(loaded.error, OSError)
    assert isinstance(computed.error, OSError)


def test_numbers_are_written_where_the_host_reads_them(device, slots):
    numbers = device.numbers(3)
    tile = Tile("a", (16,))
    for index in range(2):
        view = array(device, slots[index], index + 2)
        device.launch(sum_squares(tile, number=index), (view,), numbers[index : index + 1], ()).wait()
    assert numbers.tolist() == [64.0, 144.0, 0.0]


def test_an_operation_of_the_host_computes_on_host_arrays_in_order_with_copies(device, slots):
    view, below, result = array(device, slots[0], 5), np.zeros(16, np.float32), np.zeros(16, np.float32)
    tiles = Tile("a", (16,)), Tile("b", (16,))
    arrived = device.download(below, view, ())
    computed = device.launch_on_host(replace(copy(*tiles), device=HOST), (below, result), None, (arrived,))
    device.upload(view, result, (computed,), (arrived,)).wait()
    assert (result == 5).all()
    assert fetched(device, view)[0] == 5


def test_an_operation_of_the_host_reports_a_number_and_carries_its_error(device):
    a, b = np.full(16, 3, np.float32), np.zeros(16, np.float32)
    number, tile = np.zeros(1), Tile("a", (16,))
    device.launch_on_host(sum_squares(tile, number=0), (a,), number, ()).wait()
    assert number[0] == 9 * 16
    wrong = device.launch_on_host(copy(tile, Tile("b", (16,))), (a,), None, ())
    behind = device.launch_on_host(copy(tile, Tile("b", (16,))), (a, b), None, (wrong,))
    beside = device.launch_on_host(copy(tile, Tile("b", (16,))), (a, b), None, (), (wrong,))
    for event in (behind, beside):
        event.wait()
    assert isinstance(wrong.error, TypeError) and behind.error is wrong.error and beside.error is None
    assert (b == 3).all()


def test_slots_of_a_pool_do_not_overlap(device, slots):
    views = [array(device, slot, index) for index, slot in enumerate(slots)]
    array(device, slots[2], 9)
    assert [fetched(device, view)[0] for view in views] == [0, 1, 9, 3]


@pytest.fixture
def ranges(device):
    """Return ranges of a packed arena, 16 floats each, every second one off a multiple of its size."""
    arena = Arena(4096, evictable=True)
    arena.pack()
    device.map_ground(arena.ground)
    return [arena.range_at(offset, 64) for offset in (0, 192, 320, 4096 - 64)]


def test_ranges_of_a_packed_arena_are_parts_of_one_memory_that_is_made_once(device, ranges):
    views = [array(device, slot, index) for index, slot in enumerate(ranges)]
    device.map_ground(ranges[0].pool)
    array(device, ranges[1], 9)
    assert [fetched(device, view)[0] for view in views] == [0, 9, 2, 3]
    whole = np.empty(1024, np.float32)
    device.download(whole, device.array(ranges[0], (1024,), np.float32), ()).wait()
    assert [whole[slot.offset // 4] for slot in ranges] == [0, 9, 2, 3]


def test_a_copy_within_the_device_waits_and_is_waited_for_like_other_work(device, ranges):
    gate = threading.Event()
    device.kernels["hold"] = holding(device, gate)
    a, b, c = (array(device, slot, index + 5) for index, slot in enumerate(ranges[:3]))
    tiles = Tile("a", (16,)), Tile("b", (16,))
    held = device.launch(type(copy(*tiles))("hold", tiles, "rw"), (a, b), None, ())
    first = device.copy(b, a, (held,), what=tiles[0])
    second = device.copy(c, b, (first,), (held,), tiles[0])
    assert not first.done and not second.done and (first.what, first.is_copy) == (tiles[0], False)
    gate.set()
    second.wait()
    assert [fetched(device, view)[0] for view in (a, b, c)] == [5, 5, 5]


def test_a_copy_of_a_failed_result_fails_with_it(device, ranges):
    def bad(*arrays):
        raise ZeroDivisionError

    device.kernels["bad"] = bad
    a, b = array(device, ranges[0], 5), array(device, ranges[1], 6)
    tiles = Tile("a", (16,)), Tile("b", (16,))
    failed = device.launch(type(copy(*tiles))("bad", tiles, "rw"), (b, a), None, ())
    poisoned, beside = device.copy(b, a, (failed,)), device.copy(b, a, (), (failed,))
    for event in (poisoned, beside):
        event.wait()
    assert isinstance(poisoned.error, ZeroDivisionError) and beside.error is None


@pytest.mark.parametrize("late", [0.0, 0.015, 0.1])
@pytest.mark.parametrize(("rate", "stream", "copy_in"), [("link_rate", -2, "upload"), ("peer_rate", -1, "receive")])
def test_a_link_takes_the_time_of_its_rate_with_copying_included(rate, stream, copy_in, late, monkeypatch):
    siblings = Siblings(1 + (rate == "peer_rate"))
    device, naps = EmulatedDevice(siblings=siblings, **{rate: 1_000_000}), []
    clock = SimpleNamespace(perf_counter=lambda: device.streams()[stream].ready_at + late, sleep=naps.append)
    monkeypatch.setattr("asynctile.device.emulated.time", clock)
    device.start()
    arena = Arena(None, evictable=False)
    for pool in arena.cut(Demand((40_000,), (1,), {40_000: 1}, "copy")):
        device.map_pool(pool)
    view = device.array(arena.pools[0].take(for_load=True), (10_000,), np.float32)
    getattr(device, copy_in)(view, np.ones(10_000, np.float32), ()).wait()
    assert naps == ([pytest.approx(0.04 - late)] if late < 0.04 else [])
    device.close()


def test_a_link_rate_goes_with_emulated_devices_only():
    with pytest.raises(ValueError, match="link_rate works only with device='emulated'"):
        open_devices("cpu", link_rate=5)
