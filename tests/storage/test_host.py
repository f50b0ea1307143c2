"""RAM for slots: what is let go reads as zeros again, and living views outlive their pool."""

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


def test_a_slot_that_was_let_go_takes_no_memory_until_it_is_touched_again():
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
