"""A player for several devices: each has workers and links of its own, while edges, errors and stretches cross devices."""

import ctypes
import threading

import numpy as np
import pytest
from numba import njit

from asynctile.execute.workers.places import PARKED, STALL
from asynctile.execute.workers.tables import ANY_DEVICE, COPY, DOWNLOAD, OPERATION, PASS, UPLOAD
from tests.execute.workers.schedules import Marked, hold, number, play
from tests.settle import until

#: Bytes a second: a copy of 8 bytes takes 1 ms.
RATE = 8e3
_own_thread = ctypes.CDLL(None).pthread_self
_own_thread.argtypes, _own_thread.restype = [], ctypes.c_int64


@njit(nogil=True)
def name(marks, before, missing, entry):
    """Store the identity of the thread in `missing`."""
    missing[entry] = _own_thread()
    marks[entry] += 1


def server_of(player):
    """Return the device that each thread of the player serves, by the thread's identity."""
    workers = [thread for thread in threading.enumerate() if thread.name.startswith("asynctile-player")]
    return {thread.ident: int(thread.name.rpartition("-")[2]) // player.threads for thread in workers}


def begun(player, marked):
    """Begin a run of one stretch; return the event of its end."""
    player.attach(marked.tables)
    player.begin()
    player.release(0)
    return player.ended(0)[0]


async def asleep(player):
    """Wait until all workers sleep."""
    await until(lambda: player.state.posts[:, PARKED].tolist() == [player.threads] * player.devices)


@pytest.mark.parametrize(("threads", "devices"), [(1, 2), (2, 2), (1, 3)])
async def test_a_devices_workers_never_run_an_operation_of_another_device(players, threads, devices):
    chance = np.random.default_rng(devices)
    of, pairs = chance.integers(0, devices, 400), np.sort(chance.integers(0, 400, (500, 2))).tolist()
    edges = {(a, b) for a, b in pairs if a != b}
    marked = Marked([OPERATION] * 400, edges, kernels=dict.fromkeys(range(400), name), devices=of)
    player = players(threads, devices=devices)
    await play(player, marked.tables)
    servers = server_of(player)
    assert len(servers) == threads * devices
    assert [servers[thread] for thread in marked.missing.tolist()] == of.tolist()


async def test_a_device_goes_on_while_the_workers_of_another_are_busy(players):
    marked = Marked([OPERATION] * 40, [(i, i + 1) for i in range(2, 39)], kernels={0: hold}, devices=[0, 0, *[1] * 38])
    player = players(threads=1, devices=2)
    ended = begun(player, marked)
    await until(lambda: marked.marks[2:].all())
    assert marked.marks[:2].tolist() == [0, 0], "its own device has no other worker"
    marked.marks[0] = 1
    await ended.landed()


async def test_operations_and_copies_of_the_host_go_to_whichever_device_has_an_idle_worker(players):
    kinds = [OPERATION, OPERATION, COPY, OPERATION]
    marked = Marked(kinds, [(1, 2)], kernels={0: hold, 3: hold}, devices=[0, ANY_DEVICE, ANY_DEVICE, 2])
    player = players(threads=1, devices=3)
    ended = begun(player, marked)
    await until(lambda: marked.marks[[1, 2]].all())
    marked.marks[[0, 3]] = 1
    await ended.landed()


async def test_operations_of_the_host_occupy_the_workers_of_all_devices(players):
    marked = Marked([OPERATION] * 4, kernels=dict.fromkeys(range(4), hold), devices=[ANY_DEVICE] * 4)
    player = players(threads=2, devices=2)
    player.attach(marked.tables)
    player.begin()
    await asleep(player)
    player.release(0)
    ended = player.ended(0)[0]
    await until(lambda: len(player.running) == 4)
    marked.marks[:] = 1
    await ended.landed()


async def test_the_host_and_a_device_share_a_worker_earliest_first(players):
    devices = [1 if entry % 3 else ANY_DEVICE for entry in range(31)]
    kernels = {0: hold, **dict.fromkeys(range(1, 31), number)}
    marked = Marked([OPERATION] * 31, kernels=kernels, devices=[0, *devices[1:]])
    player = players(threads=1, devices=2)
    player.hold(True, False)
    ended = begun(player, marked)
    await until(lambda: sorted(player.state.held) == list(range(31)))
    player.hold(False, False)
    await until(lambda: marked.marks[1:].all())
    assert marked.missing[1:].tolist() == list(range(30)), "the worker of device 0 is in its first operation"
    marked.marks[0] = 1
    await ended.landed()


async def test_links_of_different_devices_run_side_by_side_and_each_keeps_its_rate(players):
    devices = [entry % 3 for entry in range(36)]
    marked = Marked([UPLOAD, UPLOAD, UPLOAD, DOWNLOAD, DOWNLOAD, DOWNLOAD, PASS, PASS, PASS] * 4, devices=devices)
    player = players(threads=1, rate=RATE, devices=3)
    await play(player, marked.tables)
    state = player.state
    assert np.unique(state.ready_at).size == 1, "all may begin when they are released"
    for device in range(3):
        for kind in (UPLOAD, DOWNLOAD, PASS):
            own = (marked.tables.kinds == kind) & (marked.tables.devices == device)
            assert np.allclose(state.ended_at[own] - state.ready_at[own], np.arange(1, 5) * 8 / RATE)


async def test_a_copy_ends_on_time_though_all_workers_of_its_device_are_busy(players):
    kinds, edges = [UPLOAD, OPERATION, OPERATION, DOWNLOAD], [(0, 2), (2, 3)]
    marked = Marked(kinds, edges, kernels={1: hold}, devices=[0, 0, 1, 1])
    player = players(threads=1, rate=RATE, devices=2)
    ended = begun(player, marked)
    await until(lambda: marked.marks[3])
    assert marked.marks[1] == 0 and not marked.missing.any()
    marked.marks[1] = 1
    await ended.landed()


@pytest.mark.parametrize("devices", [2, 3, 9])
async def test_a_chain_across_devices_wakes_the_worker_of_each(players, devices):
    n = 40 * devices
    kinds = [OPERATION, UPLOAD, OPERATION, DOWNLOAD] * (n // 4)
    marked = Marked(kinds, [(i, i + 1) for i in range(n - 1)], devices=[entry % devices for entry in range(n)])
    player = players(threads=1, devices=devices)
    for _ in range(5):
        marked.marks[:] = 0
        await begun(player, marked).landed()
        await asleep(player)
        assert (marked.marks == 1).all() and not marked.missing.any()


async def test_stalled_seconds_are_averaged_over_the_workers_of_all_devices(players):
    player = players(threads=2, devices=3)
    await play(player, Marked([UPLOAD], devices=[2]).tables)
    player.state.times[STALL] = 12.0
    assert player.stall_s == 2.0
