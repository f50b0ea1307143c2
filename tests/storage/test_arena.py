"""Slots and how a cap is cut into them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.errors import BudgetError
from asynctile.storage.arena import Arena, Demand


def demand(small=64, large=1024, floor=(3, 7), full=(100, 50)):
    return Demand((small, large), floor, {small: full[0], large: full[1]}, "attention_backward")


def test_a_slot_is_handed_out_again_only_after_it_was_given_back():
    arena = Arena(2048, divided=True)
    arena.cut(Demand((1024,), (1,), {1024: 9}, "gemm"))
    pool = arena.pool_for(1000)
    first, second = pool.take(for_load=True), pool.take(for_load=True)
    assert pool.take(for_load=True) is None
    assert first is not second
    pool.give(first, evicted=True)
    assert pool.take(for_load=True) is first
    assert arena.used_nbytes == 2048


def test_a_tile_takes_the_smallest_slot_that_holds_it():
    arena = Arena(100_000, divided=True)
    arena.cut(demand())
    assert arena.pool_for(64).slot_nbytes == 64
    assert arena.pool_for(65).slot_nbytes == 1024
    with pytest.raises(BudgetError, match="fits no slot"):
        arena.pool_for(1025)


def test_a_cap_below_the_floor_is_refused_with_the_floor_and_what_needs_it():
    floor = 3 * 64 + 7 * 1024
    with pytest.raises(BudgetError, match="attention_backward needs 3 slots of 64 B and 7 slots") as caught:
        demand().divide(floor - 1)
    assert caught.value.floor == floor
    assert demand().divide(floor) == [(64, 3), (1024, 7)]


@given(cap=st.integers(7360, 200_000))
def test_a_division_keeps_to_the_cap_and_above_the_floor(cap):
    counts = demand().divide(cap)
    assert sum(size * count for size, count in counts) <= cap
    assert [count for _, count in counts] >= [3, 7]
    assert counts[0][1] <= 100, "small slots beyond the tiles that there are would be lost to the large ones"


def test_an_undivided_arena_gains_pools_and_keeps_what_it_has():
    arena = Arena(4096, divided=False)
    (pool,) = arena.cut(Demand((1024,), (1,), {1024: 9}, "gemm"))
    kept = pool.take(for_load=True)
    arena.cut(demand())
    assert {pool.slot_nbytes for pool in arena.pools} == {64, 1024}
    assert kept.pool is arena.pool_for(1024)


def test_an_undivided_arena_stops_growing_at_its_cap():
    arena = Arena(1024 + 64, divided=False)
    arena.cut(demand())
    assert arena.pool_for(1024).take(for_load=True) is not None
    assert arena.pool_for(1024).take(for_load=True) is None
    assert arena.pool_for(64).take(for_load=True) is not None


def test_a_cap_on_ram_below_everything_resident_names_the_argument():
    needed = 100 * 64 + 50 * 1024
    Arena(needed, divided=False).check(demand())
    with pytest.raises(BudgetError, match="raise host_memory") as caught:
        Arena(needed - 1, divided=False).check(demand())
    assert caught.value.floor == needed


def test_slots_of_an_earlier_program_count_against_the_cap_on_ram():
    arena = Arena(100 * 64 + 50 * 1024, divided=False)
    arena.cut(Demand((128,), (1,), {128: 9}, "gemm"))
    arena.pool_for(128).take(for_load=True)
    with pytest.raises(BudgetError):
        arena.check(demand())
