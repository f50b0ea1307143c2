"""The memory of a growing pool: as much as is expected at first, then a little at a time, and no slot ever moves."""

from hypothesis import given
from hypothesis import strategies as st

from asynctile.storage.arena import Arena
from asynctile.storage.demand import Demand
from asynctile.storage.slabs import SLAB_NBYTES, Slabs
from asynctile.storage.slot import Slot


def pool_of(slot_nbytes, count):
    arena = Arena(None, evictable=False)
    (pool,) = arena.cut(Demand((slot_nbytes,), (1,), {slot_nbytes: count}, "gemm"))
    return pool


def slot(pool, index):
    return Slot(pool, index, index * pool.slot_nbytes, pool.slot_nbytes)


def slabs_of(pool, most=None):
    taken = []

    def take(nbytes):
        taken.append(nbytes)
        return len(taken) - 1

    return Slabs(pool, take, most), taken


def test_the_expected_slots_are_one_slab_and_further_ones_come_in_small_slabs():
    pool = pool_of(1 << 20, 5)
    slabs, taken = slabs_of(pool)
    slabs.prepare()
    assert taken == [5 << 20]
    assert slabs.place(slot(pool, 4)) == (0, 4 << 20)
    assert slabs.place(slot(pool, 5)) == (1, 0)
    assert taken == [5 << 20, SLAB_NBYTES]


def test_a_pool_with_a_new_expectation_takes_only_the_rest():
    pool = pool_of(1 << 20, 5)
    slabs, taken = slabs_of(pool)
    slabs.prepare()
    pool.expected = 12
    slabs.prepare()
    slabs.prepare()
    assert taken == [5 << 20, 7 << 20]


@given(
    size=st.integers(1, 3000),
    most=st.none() | st.integers(1, 7),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 400)), max_size=12),
)
def test_slots_never_move_and_never_overlap(size, most, steps):
    pool = pool_of(size, 3)
    slabs, taken = slabs_of(pool, most)
    places = {}
    for expects, index in steps:
        if expects:
            pool.expected = max(pool.expected, index)
            slabs.prepare()
        else:
            places.setdefault(index, slabs.place(slot(pool, index)))
    assert all(slabs.place(slot(pool, index)) == place for index, place in places.items())
    assert len(set(places.values())) == len(places)
    assert all(offset % size == 0 and offset + size <= taken[slab] for slab, offset in places.values())
