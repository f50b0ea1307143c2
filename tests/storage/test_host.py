"""RAM for slots: freed memory reads as zeros again, and living views outlive their pool."""

import subprocess
import sys

import numpy as np
import psutil

from asynctile.storage.arena import Arena
from asynctile.storage.demand import Demand
from asynctile.storage.host import HostMemory


def pool_of(slot_nbytes, count):
    arena = Arena(slot_nbytes * count, evictable=True)
    (pool,) = arena.cut(Demand((slot_nbytes,), (1,), {slot_nbytes: count}, "gemm"))
    HostMemory().map_pool(pool)
    return pool


def test_slots_do_not_overlap_and_keep_their_bytes():
    pool, memory = pool_of(192, 5), HostMemory()
    views = [memory.array(pool.take(for_load=False), (192,), np.uint8) for _ in range(5)]
    for value, view in enumerate(views):
        view[:] = value
    assert [int(view.sum()) for view in views] == [192 * value for value in range(5)]


def test_a_forgotten_pool_leaves_living_views_alone():
    pool = pool_of(64, 1)
    view = HostMemory().array(pool.take(for_load=False), (16,), np.float32)
    view[:] = 3
    pool.memory = None
    assert view.sum() == 48


def test_a_divided_arena_is_one_mapping_on_a_page_for_all_its_pools_and_for_ranges_of_bytes():
    arena, memory = Arena(4 * 4096, evictable=True), HostMemory()
    for pool in arena.cut(Demand((64, 4096), (2, 2), {64: 90, 4096: 9}, "gemm")):
        memory.map_pool(pool)
    small, large = arena.pools
    assert small.memory is large.memory is arena.ground.memory
    views = [memory.array(pool.take(for_load=True), (64,), np.uint8) for pool in arena.pools]
    assert views[0].ctypes.data % 4096 == 0
    assert views[1].ctypes.data - views[0].ctypes.data == small.limit * 64
    views[1].fill(7)
    arena = Arena(4 * 4096, evictable=True)
    arena.pack()
    memory.map_ground(arena.ground)
    kept = arena.ground.memory
    memory.map_ground(arena.ground)
    assert arena.ground.memory is kept
    start = memory.array(arena.range_at(0, 64), (64,), np.uint8).ctypes.data
    assert memory.array(arena.range_at(4096 + 64, 64), (64,), np.uint8).ctypes.data == start + 4096 + 64


def test_a_freed_slot_takes_no_memory_until_it_is_touched_again():
    nbytes = 64 << 20
    pool, memory = pool_of(nbytes, 2), HostMemory()
    slots = [pool.take(for_load=False) for _ in range(2)]
    views = [memory.array(slot, (nbytes,), np.uint8) for slot in slots]
    for view in views:
        view[:] = 7
    before = psutil.Process().memory_info().rss
    memory.discard(slots[0])
    assert before - psutil.Process().memory_info().rss > nbytes // 2
    assert not views[0].any() and views[1].all()


# In a process of its own, because memory freed by other tests would distort the sum.
ADDRESS_SPACE = """
import psutil
from asynctile.storage.arena import Arena
from asynctile.storage.demand import Demand
from asynctile.storage.host import HostMemory

arena, memory = Arena(None, evictable=False), HostMemory()
before = psutil.Process().memory_info().vms
(pool,) = arena.cut(Demand((1 << 20,), (1,), {1 << 20: 64}, "gemm"))
memory.map_pool(pool)
print(psutil.Process().memory_info().vms - before)
"""


def test_a_pool_without_a_limit_takes_address_space_for_its_needs_and_not_for_all_of_ram():
    taken = subprocess.run([sys.executable, "-c", ADDRESS_SPACE], capture_output=True, text=True, check=True).stdout
    assert 64 << 20 <= int(taken) < 96 << 20


def test_freeing_a_slot_of_a_grown_pool_leaves_its_neighbors():
    arena, memory = Arena(None, evictable=False), HostMemory()
    (pool,) = arena.cut(Demand((8192,), (1,), {8192: 2}, "gemm"))
    memory.map_pool(pool)
    slots = [pool.take(for_load=False) for _ in range(5)]
    views = [memory.array(slot, (8192,), np.uint8) for slot in slots]
    for view in views:
        view[:] = 7
    memory.discard(slots[3])
    assert [bool(view.any()) for view in views] == [True, True, True, False, True]
