"""A GPU beyond the contract of devices: memory by its driver's count, its events, landings and graphs.

Long because everything is observed through one driver made of threads, which can fail at each of its calls.
"""

import asyncio
import gc
import math
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from asynctile.device import CudaDevice, cuda_stream
from asynctile.device.cuda import RESERVE_NBYTES
from asynctile.device.cuda_memory import PinnedMemory
from asynctile.errors import BudgetError, DeviceError
from asynctile.kernels.cuda import Array
from asynctile.ops import copy, fill
from asynctile.storage.arena import Arena
from asynctile.storage.demand import Demand
from asynctile.storage.slabs import SLAB_NBYTES
from asynctile.storage.tile import Tile
from asynctile.streams.recorder import Ran, Recorder
from tests.cuda.build import missing
from tests.cuda.driver import SoftDriver
from tests.settle import HANG_S, turns, until

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
TILES = Tile("a", (16,)), Tile("b", (16,))


@pytest.fixture
def device():
    made = CudaDevice(SoftDriver())
    made.start()
    yield made
    made.close()


def slots_of(memory, size, count, cap=None):
    arena = Arena(cap, evictable=cap is not None)
    for pool in arena.cut(Demand((size,), (1,), {size: count}, "copy")):
        memory.map_pool(pool)
    return arena, [arena.pools[0].take(for_load=True) for _ in range(count)]


@pytest.fixture
def views(device):
    arena, slots = slots_of(device, 64, 4)
    yield [device.array(slot, (16,), np.float32) for slot in slots]
    del arena  # its memory belongs to the views


def test_a_divided_cap_is_taken_from_the_gpu_once_and_exactly(device):
    before = device.driver.memory()[0]
    arena = Arena(4 << 20, evictable=True)
    for pool in arena.cut(Demand((1 << 20,), (2,), {1 << 20: 9}, "copy")):
        device.map_pool(pool)
    slots = [arena.pools[0].take(for_load=True) for _ in range(4)]
    for slot in slots:
        device.array(slot, (4,), np.float32)
    assert before - device.driver.memory()[0] == (4 << 20) + 64  # and the bytes that the driver on the CPU adds to align


def test_the_ground_of_a_packed_cap_is_one_allocation_that_is_freed_with_it(device):
    before = device.driver.memory()[0]
    arena = Arena((1 << 20) + 512, evictable=True, rigid=True)
    arena.cut(Demand((1 << 19,), (2,), {1 << 19: 9}, "copy"))
    for pool in arena.pools:
        device.map_pool(pool)
    taken = before - device.driver.memory()[0]
    assert taken == (1 << 20) + 512 + 64  # and the bytes that the driver on the CPU adds to align
    address = arena.ground.memory.whole
    pool.memory = None
    arena.pack()
    device.map_ground(arena.ground)
    assert device.array(arena.range_at(768, 64), (16,), np.float32).ptr == address + 768
    assert before - device.driver.memory()[0] == taken
    arena.leave_ground()
    assert device.driver.memory()[0] == before


def test_memory_is_given_back_when_an_arena_drops_its_pools(device):
    before = device.driver.memory()[0]
    arena, slots = slots_of(device, 1 << 20, 100)
    for slot in slots:
        device.array(slot, (4,), np.float32)
    taken = before - device.driver.memory()[0]
    assert 100 << 20 <= taken <= (100 << 20) + 128  # as many slots as were wanted
    device.array(arena.pools[0].take(for_load=True), (4,), np.float32)
    assert before - device.driver.memory()[0] - taken == SLAB_NBYTES + 64  # and one slot more than that
    for pool in arena.pools:
        pool.memory = None
    assert device.driver.memory()[0] == before


def test_a_gpu_filled_by_another_process_is_refused_with_the_free_bytes():
    device = CudaDevice(SoftDriver(nbytes=100 << 20))
    with pytest.raises(BudgetError, match=r"has 0 B .*: 100\.00 MiB of its 100\.00 MiB are free.*end the other programs"):
        device.budget(None)
    device.close()


def test_a_cap_beyond_the_gpus_memory_is_refused_and_one_within_it_kept():
    device = CudaDevice(SoftDriver(nbytes=2 << 30))
    with pytest.raises(BudgetError, match=r"lower device_memory \(now 4\.00 GiB\)") as refused:
        device.budget(4 << 30)
    assert refused.value.floor == device.budget(None) == (2 << 30) - RESERVE_NBYTES
    assert device.budget(1 << 20) == 1 << 20
    device.close()


def test_memory_that_goes_missing_later_is_a_budget_error(device):
    arena, slots = slots_of(device, 512 << 20, 1)
    device.array(slots[0], (4,), np.float32)
    slots.append(arena.pools[0].take(for_load=True))
    with pytest.raises(BudgetError, match=r"cuda:0 has no 512\.00 MiB for tiles"):
        device.array(slots[1], (4,), np.float32)


def test_bf16_on_a_gpu_without_it_is_refused_in_one_sentence():
    with pytest.raises(DeviceError, match=r"cuda:0 has no bf16 arithmetic \(its compute capability is 7.5"):
        CudaDevice(SoftDriver(capability=(7, 5)), "bf16")


def test_ram_is_pinned_slab_by_slab_as_slots_are_used_and_unpinned_when_freed():
    driver = SoftDriver()
    memory = PinnedMemory(driver)
    arena, slots = slots_of(memory, 3 * 64, 2)
    views = [memory.array(slot, (48,), np.float32) for slot in slots]
    assert list(driver.pinned.values()) == [2 * 192]  # as many slots as were wanted
    while len(driver.pinned) < 3:
        slot = arena.pools[0].take(for_load=True)
        views.append(memory.array(slot, (48,), np.float32))
        views[-1].fill(slot.index)
    assert all((view == view[0]).all() for view in views[2:])
    del views, slots, slot
    for pool in arena.pools:
        pool.memory = None
    gc.collect()
    assert not driver.pinned


def test_a_download_to_unpinned_ram_does_not_hold_the_caller(device, views):
    gate = threading.Event()
    device.kernels["hold"] = lambda on, *arrays: device.driver.hold(gate, device.streams()[0].handle)
    held = device.launch(type(copy(*TILES))("hold", TILES, "rw"), views[:2], None, ())
    device.launch(fill(TILES[1], 5.0), views[1:2], None, (held,))
    out = np.zeros((4, 8), np.float32)
    target = out[:, 2:4]  # and need not be dense
    tile = Array(views[3].ptr, (4, 2), np.dtype(np.float32))
    done = device.launch(fill(TILES[0], 7.0), (tile,), None, (held,))
    landed = device.download(target, tile, (done,))
    assert not landed.done
    gate.set()
    landed.wait()
    assert (target == 7).all() and (out[:, :2] == 0).all()


def test_an_error_on_the_gpu_reaches_every_waiter_and_names_the_work(device, views):
    def bad(on, *arrays):
        device.driver.streams[device.streams()[0].handle].put(lambda: 1 / 0)

    device.kernels["bad"] = bad
    event = device.launch(type(copy(*TILES))("bad", TILES, "rw"), views[:2], None, ())
    event.wait()
    assert isinstance(event.error, DeviceError)
    assert "bad(a:r, b:w" in str(event.error)


async def test_thousands_of_small_operations_land_in_order_while_the_loop_stays_free(device, views):
    landed, events = [], []
    gate = threading.Event()

    async def open_the_gate():
        await until(lambda: len(landed) >= 100)
        await turns()
        assert len(landed) <= 150
        gate.set()

    async def wait(index, event):
        await event.landed()
        landed.append(index)

    def enqueue():
        before = ()
        for index in range(3000):
            before = (device.launch(fill(TILES[0], float(index)), views[:1], None, before),)
            if index % 10 == 9:
                events.append(before[0])
            if index == 1500:
                device.driver.hold(gate, device.streams()[0].handle)

    try:
        await asyncio.to_thread(enqueue)
        opening = asyncio.ensure_future(open_the_gate())
        await asyncio.gather(opening, *(wait(index, event) for index, event in enumerate(events)))
    finally:
        gate.set()
    assert landed == sorted(landed)
    assert device.streams()[0].finished == 3000


def test_a_stream_waits_only_once_for_work_it_is_already_behind(device, views, monkeypatch):
    waited = []
    wait = device.driver.wait
    monkeypatch.setattr(device.driver, "wait", lambda stream, event: waited.append(stream) or wait(stream, event))
    gate = threading.Event()
    device.driver.hold(gate, device.streams()[1].handle)
    loads = [device.upload(view, np.ones(16, np.float32), ()) for view in views]
    device.launch(copy(*TILES), views[:2], None, loads)
    device.launch(copy(*TILES), views[1:], None, loads[:2])
    gate.set()
    device.launch(copy(*TILES), views[:2], None, ()).wait()
    assert len(waited) == 1


def test_time_that_compute_waits_for_copies_is_counted_while_a_trace_is_recorded(device, views, monkeypatch):
    device.streams()[0].trace = Recorder()
    gate, clock = threading.Event(), SimpleNamespace(now=1.0)
    monkeypatch.setattr("tests.cuda.stream.time", SimpleNamespace(perf_counter=lambda: clock.now, sleep=time.sleep))
    device.driver.hold(gate, device.streams()[1].handle)
    load = device.upload(views[0], np.ones(16, np.float32), ())
    computed = device.launch(copy(*TILES), views[:2], None, (load,))
    began, _ = computed.seen.stall
    device.driver.synchronize(began)
    clock.now = 1.25
    gate.set()
    computed.wait()
    assert device.stall_s() == 0.25


async def test_nothing_is_timed_while_nobody_measures_and_unknown_times_are_nan(device, views, monkeypatch):
    timed, new_event = [], device.driver.new_event
    monkeypatch.setattr(device.driver, "new_event", lambda **how: timed.append(how) or new_event(**how))
    gate = threading.Event()
    device.driver.hold(gate, device.streams()[1].handle)
    load = device.upload(views[0], np.ones(16, np.float32), ())
    computed = device.launch(copy(*TILES), views[:2], None, (load,))
    gate.set()
    await settled(computed)
    assert len(timed) == 2 and not any(timed), "one behind each piece of work, and none with times"
    assert math.isnan(device.stall_s())


def test_a_trace_shows_the_work_of_each_stream(device, views):
    trace = Recorder()
    for stream in device.streams():
        stream.trace = trace
    load = device.upload(views[0], np.ones(16, np.float32), ())
    first = device.launch(copy(*TILES), views[:2], None, (load,))
    device.launch(fill(TILES[0], 1.0), views[:1], None, (first,)).wait()
    load.wait()  # the other stream has a landing of its own
    told = [message for message in trace.take(100) if isinstance(message, Ran)]
    computed, uploaded = ([ran for ran in told if ran.stream == name] for name in ("compute", "upload"))
    assert [ran.what.kernel for ran in computed] == ["copy", "fill"]
    assert [ran.thread for ran in uploaded] == ["upload"]
    assert all(ran.began <= ran.ended for ran in told)
    assert computed[0].ended <= computed[1].began + 1e-6


async def settled(*events):
    """Wait until these events have settled, with or without an error; TimeoutError after 20 s."""
    async with asyncio.timeout(HANG_S):
        for event in events:
            await event.settled()


def fail_once(monkeypatch, owner, name, *, first=False):
    """Make the next call of a method raise. first: only after the call was done."""
    true = getattr(owner, name)

    def fail(*args):
        monkeypatch.setattr(owner, name, true)
        if first:
            true(*args)
        raise RuntimeError("the driver says no")

    monkeypatch.setattr(owner, name, fail)


def refuse(on, *arrays):
    raise RuntimeError("no workspace")


@pytest.mark.parametrize("traced", [False, True])
async def test_work_that_is_not_handed_over_fails_alone_and_none_of_its_times_is_read(device, views, monkeypatch, traced):
    compute, upload, _, *_ = device.streams()
    compute.trace = trace = Recorder() if traced else None
    gate = threading.Event()
    device.driver.hold(gate, upload.handle)
    load = device.upload(views[0], np.ones(16, np.float32), ())
    read, elapsed_s = [], device.driver.elapsed_s
    monkeypatch.setattr(device.driver, "elapsed_s", lambda *timers: read.append(timers) or elapsed_s(*timers))
    monkeypatch.setitem(device.kernels, "bad", refuse)
    bad = device.launch(type(copy(*TILES))("bad", TILES, "rw"), views[:2], None, (load,))
    await settled(bad)  # its wait for the copy stays on the stream, and has not come to an end
    too_early = list(read)
    gate.set()
    assert str(bad.error) == "no workspace" and not too_early
    good = device.launch(fill(TILES[0], 3.0), views[2:3], None, ())
    await settled(good)
    assert good.error is None
    assert device.stall_s() == 0 if traced else math.isnan(device.stall_s())
    assert [message.what.kernel for message in (trace.take(100) if trace else ())] == ["fill"] * traced


async def test_a_time_that_cannot_be_read_fails_its_work_and_the_stream_goes_on(device, views, monkeypatch):
    compute, upload, _, *_ = device.streams()
    compute.trace = Recorder()
    fail_once(monkeypatch, device.driver, "elapsed_s")
    gate = threading.Event()
    device.driver.hold(gate, upload.handle)
    load = device.upload(views[0], np.ones(16, np.float32), ())
    stalled = device.launch(copy(*TILES), views[:2], None, (load,))
    gate.set()
    await settled(stalled)
    assert isinstance(stalled.error, DeviceError) and "the driver says no" in str(stalled.error)
    after = device.launch(fill(TILES[0], 3.0), views[2:3], None, ())
    await settled(after)
    assert after.error is None


def test_host_work_still_waiting_does_not_run_after_the_device_was_closed():
    """Its memory is gone, and may belong to another engine."""
    device = CudaDevice(SoftDriver())
    device.start()
    arena, slots = slots_of(device, 64, 1)
    view = device.array(slots[0], (16,), np.float32)
    gate, host = threading.Event(), device.add_stream("files", 1)
    host.start()
    event = device.launch(fill(TILES[0], 1.0), [view], None, (), (host.enqueue((), gate.wait, ()),))
    device.close(patience_s=0.05)
    gate.set()
    for thread in threading.enumerate():
        if thread.name in ("asynctile-files", "asynctile-compute"):
            thread.join(HANG_S)
    assert isinstance(event.error, DeviceError)
    assert device.driver.launches == 0
    del arena


def test_closing_runs_enqueued_work_and_leaves_nothing():
    driver = SoftDriver(seed=3)
    device = CudaDevice(driver)
    device.start()
    free = driver.memory()[0]
    arena, slots = slots_of(device, 64, 2)
    views = [device.array(slot, (16,), np.float32) for slot in slots]
    events = [device.launch(fill(TILES[0], 1.0), views[:1], None, ()) for _ in range(cuda_stream.BATCH * 3)]
    device.close()
    assert all(event.done and event.error is None for event in events)
    for pool in arena.pools:
        pool.memory = None
    gc.collect()
    assert driver.memory()[0] >= free
    with pytest.raises(DeviceError, match="is closed"):
        device.launch(fill(TILES[0], 1.0), views[:1], None, ())
