"""Slots, and the division of a cap into them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.errors import BudgetError
from asynctile.storage.arena import Arena
from asynctile.storage.demand import Demand


def demand(small=64, large=1024, floor=(3, 7), full=(100, 50)):
    return Demand((small, large), floor, {small: full[0], large: full[1]}, "attention_backward")


def test_a_slot_is_handed_out_again_only_after_it_was_given_back():
    arena = Arena(2048, evictable=True)
    arena.cut(Demand((1024,), (1,), {1024: 9}, "gemm"))
    pool = arena.pool_for(1000)
    first, second = pool.take(for_load=True), pool.take(for_load=True)
    assert pool.take(for_load=True) is None
    assert first is not second
    pool.give(first, evicted=True)
    assert pool.take(for_load=True) is first
    assert arena.used_nbytes == 2048


def test_a_tile_takes_the_smallest_slot_that_holds_it():
    arena = Arena(100_000, evictable=True)
    arena.cut(demand())
    assert arena.pool_for(64).slot_nbytes == 64
    assert arena.pool_for(65).slot_nbytes == 1024
    with pytest.raises(BudgetError, match="fits no slot"):
        arena.pool_for(1025)


def test_a_cap_below_the_floor_is_refused_with_the_floor_and_the_operation_that_needs_it():
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


def test_an_undivided_arena_gains_pools_and_keeps_the_old_ones():
    arena = Arena(1 << 17, evictable=False)
    (pool,) = arena.cut(Demand((1024,), (1,), {1024: 9}, "gemm"))
    kept = pool.take(for_load=True)
    arena.cut(demand())
    assert {pool.slot_nbytes for pool in arena.pools} == {64, 1024}
    assert kept.pool is arena.pool_for(1024)


def test_an_undivided_arena_stops_growing_at_its_cap():
    arena = Arena(1024 + 64, evictable=False)
    arena.cut(demand(full=(1, 1)))
    assert arena.pool_for(1024).take(for_load=True) is not None
    assert arena.pool_for(1024).take(for_load=True) is None
    assert arena.pool_for(64).take(for_load=True) is not None


def test_a_cap_on_ram_below_everything_resident_names_the_argument():
    needed = 100 * 64 + 50 * 1024
    Arena(needed, evictable=False, argument="host_memory").check(demand())
    with pytest.raises(BudgetError, match="raise host_memory") as caught:
        Arena(needed - 1, evictable=False, argument="host_memory").check(demand())
    assert caught.value.floor == needed


def test_resident_tiles_of_another_program_count_against_the_cap_on_ram():
    arena = Arena(100 * 64 + 50 * 1024, evictable=False)
    arena.cut(Demand((128,), (1,), {128: 9}, "gemm"))
    arena.pool_for(128).take(for_load=True)
    with pytest.raises(BudgetError):
        arena.check(demand(), {128: 1})


def test_free_slots_of_an_earlier_program_make_room_for_other_sizes():
    arena = Arena(100 * 64 + 50 * 1024, evictable=False)
    arena.cut(Demand((128,), (1,), {128: 9}, "gemm"))
    pool = arena.pool_for(128)
    slots = [pool.take(for_load=False) for _ in range(9)]
    for slot in slots:
        pool.give(slot, evicted=False)
    assert not arena.fits(demand())
    assert set(arena.make_room(demand())) == set(slots)
    arena.cut(demand())
    assert arena.fits(demand())
    assert all(arena.pool_for(1024).take(for_load=False) for _ in range(50))
    assert all(arena.pool_for(64).take(for_load=False) for _ in range(100))
    assert pool.take(for_load=False) is None, "the cap is spoken for"
    arena.cap = None
    assert pool.take(for_load=False) in slots, "a slot that was let go comes back, not another on its bytes"


def test_a_cap_that_holds_everything_is_not_divided_even_where_tiles_could_leave():
    arena = Arena(100 * 64 + 50 * 1024, evictable=True)
    arena.cut(demand())
    assert not arena.divided
    assert not arena.must_be_empty(demand())
    more = demand(full=(100, 51))
    assert arena.must_be_empty(more)
    arena.cut(more)
    assert arena.divided


def test_ram_is_lent_only_while_the_programs_it_was_divided_for_do_not_need_it():
    arena = Arena(100 * 64 + 50 * 1024 + 500, evictable=True)
    arena.cut(demand())
    assert not arena.lend(501)
    assert arena.lend(500)
    assert not arena.lend(1)
    assert arena.must_be_empty(demand(full=(101, 50)))


def test_rounding_a_demand_joins_sizes_that_become_one():
    rounded = Demand((64, 1024), (3, 7), {64: 5, 512: 2, 1024: 4}, "gemm").rounded(4096)
    assert (rounded.sizes, rounded.floor, rounded.exact) == ((4096,), (10,), {4096: 11})
    assert demand().rounded(64).sizes == (64, 1024)


def test_a_size_that_rounding_makes_small_counts_in_the_floor_of_small_tiles():
    rounded = Demand((2816, 24576), (2, 3), {2800: 4, 3840: 9, 24576: 5}, "gemm").rounded(4096)
    assert rounded.sizes == (4096, 24576)
    assert rounded.floor == (5, 3)


def test_a_load_takes_the_longest_free_slot_and_an_overwrite_the_one_freed_last():
    arena = Arena(None, evictable=True)
    (pool,) = arena.cut(Demand((64,), (1,), {64: 9}, "copy"))
    slots = [pool.take(for_load=True) for _ in range(6)]
    for slot, evicted in zip(slots, (True, True, False, False, False, False), strict=True):
        pool.give(slot, evicted=evicted)
    assert pool.take(for_load=False) is slots[5]
    assert [pool.take(for_load=True) for _ in range(5)] == slots[:5]


def test_slots_made_beyond_the_promise_are_not_lent():
    arena = Arena(640, evictable=True)
    (pool,) = arena.cut(Demand((64,), (1,), {64: 2}, "copy"))
    for _ in range(5):
        assert pool.take(for_load=True) is not None
    assert not arena.lend(6 * 64)
    assert arena.lend(5 * 64)
    assert pool.take(for_load=True) is None


def test_only_the_tier_below_has_slots_for_downloads_in_turn():
    both = Demand((64,), (1,), {60: 2, 64: 2}, "adamw", in_turn={60: 3}).rounded(128)
    assert both.exact == {128: 4} and both.resident_nbytes == 4 * 128
    assert both.passing(in_turn=True).exact == {128: 7} and both.passing().exact == {128: 4}


def test_in_a_tidy_pool_an_overwrite_takes_the_lowest_free_slot():
    arena = Arena(1 << 20, evictable=False)
    (pool,) = arena.cut(Demand((1024,), (1,), {1024: 4}, "adamw"))
    slots = [pool.take(for_load=False) for _ in range(4)]
    for index in (2, 0, 3, 1):
        pool.give(slots[index], evicted=index == 3)
    pool.tidy()
    assert [pool.take(for_load=False).index for _ in range(4)] == [0, 1, 2, 3]
