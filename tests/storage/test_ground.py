"""Ranges of bytes at any offset: they never overlap, and new users of bytes wait for all earlier work on them."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asynctile.errors import AsynctileError
from asynctile.storage.arena import Arena
from asynctile.storage.demand import Demand

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


def test_a_range_waits_for_the_work_on_every_range_that_it_overlaps_and_on_no_other():
    arena = packed()
    slots = [take(arena, index * 128, 128) for index in range(4)]
    for name, slot in zip("abcd", slots, strict=True):
        slot.pool.give(slot, evicted=True)
        slot.guard = (name,)
    assert take(arena, 64, 192).guard == ("a", "b")
    assert take(arena, 0, 64).guard == ("a",)
    assert take(arena, 256, 256).guard == ("c", "d")


def test_the_guards_of_a_range_may_become_known_after_others_got_its_bytes():
    """Several moves are decided at a time, and an eviction has its events only when it is carried out."""
    arena = packed()
    old = take(arena, 0, 256)
    old.pool.give(old, evicted=True)
    first, second = take(arena, 0, 128), take(arena, 128, 128)
    first.pool.give(first, evicted=True)  # taken back before it was carried out
    third = take(arena, 64, 64)
    old.guard = ("write back",)
    assert second.guard == third.guard == ("write back",)
    second.guard = ()
    assert (second.guard, third.guard) == ((), ("write back",))


def test_a_range_that_is_claimed_again_waits_for_its_users_in_between():
    arena = packed()
    old = take(arena, 0, 256)
    old.pool.give(old, evicted=True)
    other = take(arena, 128, 256)
    other.pool.give(other, evicted=True)
    old.pool.claim(old)
    assert old.guard == ()
    other.guard = ("other",)
    assert old.guard == ("other",)


def test_a_packed_arena_waits_for_work_on_the_slots_of_its_division():
    arena = divided()
    small, large = arena.pools
    slots = [small.take(for_load=True), large.take(for_load=True), large.take(for_load=True)]
    for slot in slots:
        slot.pool.give(slot, evicted=True)
        slot.guard = (slot.offset,)
    arena.pack()
    assert take(arena, slots[0].offset, 64).guard == (slots[0].offset,)
    assert take(arena, slots[1].offset + 64, 256).guard == (slots[1].offset, slots[2].offset)


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
    assert arena.divided and not arena.packed and arena.pools[0].take(for_load=True).guard == ()
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


class Model:
    """Ranges as a tier uses them.

    Several moves are decided at a time, then carried out in order, or taken back from some point on.

    ever: events that were ever put on each unit of the ground. before: what each event, and each slot in use, comes after.
    """

    def __init__(self):
        self.arena = packed()
        self.ever = [set() for _ in range(CAP // 64)]
        self.before, self.in_use, self.decided = {}, [], []

    def take(self, units):
        taken = {unit for _, others in self.in_use for unit in others}
        if taken & set(units):
            with pytest.raises(AsynctileError, match="overlap"):
                take(self.arena, units[0] * 64, len(units) * 64)
            return
        slot = take(self.arena, units[0] * 64, len(units) * 64)
        self.in_use.append((slot, units))
        self.decided.append((True, slot, units))

    def give(self, number, evicted):
        slot, units = self.in_use.pop(number)
        slot.pool.give(slot, evicted=evicted)
        self.decided.append((False, slot, units))

    def carry_out(self, count):
        for takes, slot, units in self.decided[:count]:
            if takes:
                self.before[slot] = set(slot.guard).union(*(self.before[event] for event in slot.guard))
                assert self.before[slot] >= set().union(*(self.ever[unit] for unit in units))
                slot.guard = ()
            else:
                event = len(self.before)
                self.before[event] = self.before[slot]
                slot.guard = (event,)
                for unit in units:
                    self.ever[unit].add(event)
        for takes, slot, units in reversed(self.decided[count:]):
            if takes:
                self.in_use.remove((slot, units))
                slot.pool.give(slot, evicted=True)
            else:
                self.in_use.append((slot, units))
                slot.pool.claim(slot)
        self.decided.clear()

    def check(self):
        taken = [unit for _, units in self.in_use for unit in units]
        assert len(set(taken)) == len(taken)
        assert self.arena.used_nbytes == self.arena.counted_nbytes == 64 * len(taken) <= CAP


@settings(max_examples=200)
@given(st.data())
def test_ranges_never_overlap_and_come_after_all_earlier_users(data):
    model, last = Model(), CAP // 64 - 1
    for _ in range(data.draw(st.integers(1, 40))):
        if model.in_use and data.draw(st.booleans()):
            model.give(data.draw(st.integers(0, len(model.in_use) - 1)), data.draw(st.booleans()))
        else:
            first = data.draw(st.integers(0, last))
            model.take(range(first, 1 + data.draw(st.integers(first, min(first + 8, last)))))
        if data.draw(st.booleans()):
            model.carry_out(data.draw(st.integers(0, len(model.decided))))
        model.check()
