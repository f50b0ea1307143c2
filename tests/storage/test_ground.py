"""Ranges of bytes at any offset: they never overlap and are counted."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.errors import AsynctileError
from asynctile.storage.arena import Arena
from asynctile.storage.demand import Demand
from tests.laws import examples

CAP = 32 * 64


def packed(cap=CAP, alignment=64):
    arena = Arena(cap, evictable=True, alignment=alignment)
    arena.pack()
    return arena


def take(arena, offset, nbytes):
    """Return the slot at `offset`, taken."""
    slot = arena.range_at(offset, nbytes)
    slot.pool.claim(slot)
    return slot


def divided(cap=CAP):
    arena = Arena(cap, evictable=True)
    arena.cut(Demand((64, 256), (2, 3), {64: 90, 256: 90}, "gemm"))
    return arena


def test_a_range_takes_whole_units_of_the_alignment_and_counts_them():
    arena = packed(4 * 4096, alignment=4096)
    slot = take(arena, 4096, 5000)
    assert (slot.offset, slot.index, slot.nbytes) == (4096, 4096, 8192)
    assert (arena.used_nbytes, arena.counted_nbytes, slot.pool.used) == (8192, 8192, 1)
    slot.pool.give(slot, evicted=True)
    assert (arena.used_nbytes, arena.counted_nbytes, slot.pool.used) == (0, 0, 0)


@pytest.mark.parametrize(("offset", "nbytes"), [(64, 64), (0, 128), (128, 64), (0, 1024), (64, 128)])
def test_a_range_that_overlaps_one_in_use_is_a_fault(offset, nbytes):
    arena = packed()
    take(arena, 64, 128)
    with pytest.raises(AsynctileError, match="overlap"):
        take(arena, offset, nbytes)
    assert arena.counted_nbytes == arena.used_nbytes == 128


@pytest.mark.parametrize(("offset", "nbytes"), [(-64, 64), (CAP, 64), (CAP - 64, 128)])
def test_a_range_beyond_the_cap_is_a_fault(offset, nbytes):
    arena = packed()
    with pytest.raises(AsynctileError, match=f"outside the ground of {CAP}"):
        take(arena, offset, nbytes)
    assert arena.counted_nbytes == arena.used_nbytes == 0


def test_a_range_off_the_alignment_is_a_fault():
    with pytest.raises(AssertionError):
        take(packed(), 32, 64)


def test_a_range_whose_tile_left_can_be_claimed_again_unless_its_bytes_have_another_owner():
    arena = packed()
    old = take(arena, 64, 128)
    old.pool.give(old, evicted=True)
    other = take(arena, 128, 256)
    with pytest.raises(AsynctileError, match="bytes 64 to 192 overlap bytes 128 to 384"):
        old.pool.claim(old)
    other.pool.give(other, evicted=True)
    old.pool.claim(old)
    assert arena.counted_nbytes == arena.used_nbytes == 128


def test_a_range_that_is_not_taken_cannot_be_given_back():
    arena = packed()
    taken = take(arena, 64, 128)
    for offset in (0, 64, 128):
        other = arena.range_at(offset, 128)
        with pytest.raises(AssertionError, match="were not taken"):
            other.pool.give(other, evicted=True)
    assert taken.pool.used == 1 and arena.counted_nbytes == arena.used_nbytes == 128


def test_slots_of_a_divided_arena_lie_side_by_side_on_its_ground():
    arena = divided()
    slots = [pool.take(for_load=True) for pool in arena.pools for _ in range(pool.limit)]
    assert slots[0].offset == 0
    assert all(one.offset + one.nbytes == other.offset for one, other in pairwise(slots))
    assert CAP - 256 < slots[-1].offset + slots[-1].nbytes <= CAP


def test_an_arena_is_packed_until_it_is_divided_and_keeps_its_ground():
    demand = Demand((64, 256), (2, 3), {64: 90, 256: 90}, "gemm")
    arena = divided()
    ground = arena.ground
    assert arena.is_cut_for(demand) and arena.fits(demand)
    arena.pack()
    assert arena.packed and arena.divided and not arena.pools
    assert not (arena.fits(demand) or arena.is_cut_for(demand) or arena.has_room_for(demand))
    assert arena.must_be_empty(demand) and not arena.lend(1) and not arena.make_room(demand)
    assert arena.may_stay_packed(demand) and not arena.may_stay_packed(Demand((64,), (1,), {64: 2}, "copy"))
    for cap in (CAP // 2, 2 * CAP):  # given up in part, or given back, and not divided anew
        arena.cap = cap
        assert not arena.may_stay_packed(demand)
    arena.cap = CAP
    slot = take(arena, 0, 64)
    with pytest.raises(AssertionError, match="with tiles in it"):
        arena.pack()
    slot.pool.give(slot, evicted=True)
    arena.cut(demand)
    assert arena.divided and not arena.packed
    assert arena.ground is ground and not arena.may_stay_packed(demand)


def test_a_ground_is_given_up_with_the_cap_and_if_everything_fits():
    demand = Demand((64, 256), (2, 3), {64: 90, 256: 90}, "gemm")
    arena = divided()
    old = arena.ground
    arena.cap = 2 * CAP
    arena.cut(demand)
    assert arena.ground is not old and arena.ground.nbytes == 2 * CAP
    old, arena.ground.memory = arena.ground, object()
    arena.cut(Demand((64,), (1,), {64: 2}, "copy"))
    assert arena.ground is None and not arena.divided and old.memory is None


@examples(200)
@given(st.data())
def test_ranges_never_overlap_and_are_counted_whatever_is_taken_and_given_back(data):
    arena, last, in_use = packed(), CAP // 64 - 1, []
    for _ in range(data.draw(st.integers(1, 40))):
        if in_use and data.draw(st.booleans()):
            slot, _ = in_use.pop(data.draw(st.integers(0, len(in_use) - 1)))
            slot.pool.give(slot, evicted=data.draw(st.booleans()))
        else:
            first = data.draw(st.integers(0, last))
            units = range(first, 1 + data.draw(st.integers(first, min(first + 8, last))))
            if any(unit in others for _, others in in_use for unit in units):
                with pytest.raises(AsynctileError, match="overlap"):
                    take(arena, units[0] * 64, len(units) * 64)
            else:
                in_use.append((take(arena, units[0] * 64, len(units) * 64), units))
        assert arena.used_nbytes == arena.counted_nbytes == 64 * sum(len(units) for _, units in in_use) <= CAP
