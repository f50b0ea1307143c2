"""Places in the spill file: exact, disjoint, under a cap whose refusal says what would suffice."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.errors import BudgetError
from asynctile.storage.blocks import Block, Blocks

UNIT = 4096
SIZES = st.integers(1, 6 * UNIT)


def assert_apart(blocks: list[Block], end: int) -> None:
    spans = sorted((block.offset, block.offset + block.nbytes) for block in blocks)
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(spans))
    assert all(start >= 0 and stop <= end for start, stop in spans)


@given(
    cap=st.none() | st.integers(UNIT, 64 * UNIT),
    steps=st.lists(st.tuples(st.sampled_from(["take", "give", "reserve"]), SIZES, st.integers(0, 8)), max_size=60),
)
def test_blocks_never_overlap_and_a_reservation_is_kept(cap, steps):
    blocks = Blocks(cap, UNIT)
    taken: list[Block] = []
    refusals: list[BudgetError] = []
    for step, nbytes, count in steps:
        if step == "give" and taken:
            blocks.give(taken.pop(count % len(taken)))
        elif step == "take":
            try:
                taken.append(blocks.take(nbytes, "t"))
            except BudgetError as error:
                refusals.append(error)
        elif step == "reserve":
            counts = {nbytes: count, nbytes // 2 + 1: 2}
            try:
                blocks.reserve(counts)
            except BudgetError as error:
                refusals.append(error)
            else:
                fresh = [blocks.take(size, "t") for size, many in counts.items() for _ in range(many)]
                assert_apart(taken + fresh, blocks.end)
                for block in fresh:
                    blocks.give(block)
        assert_apart(taken, blocks.end)
        assert blocks.used_nbytes == sum(block.nbytes for block in taken)
        assert blocks.used_nbytes <= min(blocks.peak_nbytes, blocks.end)
        assert cap is None or blocks.end <= cap
        assert all(block.offset % UNIT == block.nbytes % UNIT == 0 for block in taken)
    assert all(cap is not None and error.floor > cap for error in refusals)


@given(
    before=st.lists(SIZES, max_size=12),
    kept=st.sets(st.integers(0, 11)),
    counts=st.dictionaries(SIZES, st.integers(1, 5), min_size=1, max_size=4),
)
def test_the_named_floor_is_exactly_what_suffices(before, kept, counts):
    def used(cap):
        blocks = Blocks(cap, UNIT)
        for index, block in enumerate([blocks.take(nbytes, "t") for nbytes in before]):
            if index not in kept:
                blocks.give(block)
        return blocks

    laid = sum(Blocks(None, UNIT).align(nbytes) for nbytes in before)
    try:
        used(laid).reserve(counts)
    except BudgetError as error:
        used(error.floor).reserve(counts)
        with pytest.raises(BudgetError):
            used(error.floor - UNIT).reserve(counts)


def test_sizes_are_rounded_up_to_the_alignment_and_the_cap_down():
    blocks = Blocks(3 * UNIT - 1, UNIT)
    assert [blocks.take(nbytes, "t").nbytes for nbytes in (1, UNIT)] == [UNIT, UNIT]
    with pytest.raises(BudgetError):
        blocks.take(1, "t")


def test_a_reused_place_keeps_its_guard_and_leaves_its_checksum_to_reads_in_flight():
    blocks = Blocks(UNIT, UNIT)
    block = blocks.take(1, "a")
    block.checksum, block.guard = 7, ("event",)
    blocks.give(block)
    other = blocks.take(UNIT, "b")
    assert other.offset == block.offset and other.guard == ("event",)
    assert other.checksum is None and block.checksum == 7
    assert blocks.peak_nbytes == blocks.used_nbytes == blocks.end == UNIT


def test_a_full_tier_names_the_tile_its_bytes_and_the_remedy():
    blocks = Blocks(2 * UNIT, UNIT)
    blocks.take(UNIT, "tile a")
    sentence = r"tile b needs 8.00 KiB of the spill file; 4.00 KiB of 8.00 KiB are free, .*; raise spill_limit"
    with pytest.raises(BudgetError, match=sentence) as caught:
        blocks.take(2 * UNIT, "tile b")
    assert caught.value.floor == 3 * UNIT


def test_an_impossible_reservation_says_what_would_suffice_and_changes_nothing():
    blocks = Blocks(4 * UNIT, UNIT)
    blocks.take(2 * UNIT, "t")
    sentence = r"spill_limit of 16.00 KiB is below the 20.00 KiB \(20480 bytes\) that is needed: the spill file needs a place"
    with pytest.raises(BudgetError, match=sentence + ".*raise spill_limit") as caught:
        blocks.reserve({UNIT: 3})
    assert caught.value.floor == 5 * UNIT and blocks.end == 2 * UNIT
    blocks.reserve({UNIT: 2})
    assert blocks.end == 4 * UNIT


def test_sizes_that_round_to_the_same_are_reserved_together():
    blocks = Blocks(2 * UNIT, UNIT)
    with pytest.raises(BudgetError) as caught:
        blocks.reserve({UNIT: 2, UNIT - 1: 1})
    assert caught.value.floor == 3 * UNIT


def test_freed_blocks_are_cut_into_other_sizes_before_the_file_grows():
    blocks = Blocks(None, UNIT)
    taken = [blocks.take(2 * UNIT, "t") for _ in range(4)]
    for block in taken[:3]:
        blocks.give(block)
    blocks.reserve({5 * UNIT: 1, UNIT: 1})
    assert blocks.end == 8 * UNIT
    assert_apart([blocks.take(5 * UNIT, "a"), blocks.take(UNIT, "b"), taken[3]], blocks.end)


def test_a_second_reservation_of_the_same_sizes_takes_nothing_more():
    blocks = Blocks(None, UNIT)
    for _ in range(3):
        blocks.reserve({UNIT: 4, 3 * UNIT: 2})
    assert blocks.end == 10 * UNIT


def test_large_blocks_are_cut_first_so_that_small_ones_do_not_break_their_only_hole() -> None:
    blocks = Blocks(5 * UNIT, UNIT)
    blocks.reserve({UNIT: 5})
    taken = [blocks.take(UNIT, "t") for _ in range(5)]
    assert [block.offset for block in taken] == [index * UNIT for index in range(5)], "from the front of the file"
    for index in (0, 1, 3):
        blocks.give(taken[index])
    blocks.reserve({UNIT: 1, 2 * UNIT: 1})
    assert blocks.take(2 * UNIT, "t").offset == 0
    assert blocks.take(UNIT, "t").offset == 3 * UNIT


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["take", "give", "cut", "join", "reserve"]), SIZES, st.integers(0, 8)), max_size=60
    )
)
def test_spans_lie_apart_from_blocks_and_respect_reservations(steps):
    blocks = Blocks(None, UNIT)
    taken: list[Block] = []
    spans: list[Block] = []
    for step, nbytes, count in steps:
        if step == "take":
            taken.append(blocks.take(nbytes, "t"))
        elif step == "give" and taken:
            blocks.give(taken.pop(count % len(taken)))
        elif step == "cut":
            spans.append(blocks.cut(nbytes, "s"))
        elif step == "join" and spans:
            blocks.join(spans.pop(count % len(spans)))
        elif step == "reserve":
            blocks.reserve({nbytes: count})
            spans.append(blocks.cut(nbytes, "s"))
            end = blocks.end
            fresh = [blocks.take(nbytes, "t") for _ in range(count)]
            assert blocks.end == end, "a span took what was reserved"
            taken += fresh
        assert_apart(taken + spans, blocks.end)
        assert blocks.used_nbytes == sum(block.nbytes for block in taken + spans)


def test_a_span_is_never_cut_from_a_block_with_reads_in_flight():
    blocks = Blocks(None, UNIT)
    block = blocks.take(UNIT, "t")
    block.guard = ("event",)
    blocks.give(block)
    span = blocks.cut(UNIT, "s")
    assert span.offset == UNIT and span.guard == ()
    assert blocks.take(UNIT, "t").guard == ("event",)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_spans_given_back_in_any_order_become_one_hole(order):
    blocks = Blocks(8 * UNIT, UNIT)
    spans = [blocks.cut(2 * UNIT, "s") for _ in range(3)]
    behind = blocks.take(UNIT, "t")
    for index in order:
        blocks.join(spans[index])
    assert blocks.cut(6 * UNIT, "s").offset == 0
    assert behind.offset == 6 * UNIT


def test_growing_spans_taken_in_turn_make_the_file_no_longer_than_the_last():
    blocks = Blocks(7 * UNIT, UNIT)
    for units in range(1, 8):
        blocks.join(blocks.cut(units * UNIT, "s"))
    assert blocks.peak_nbytes == 7 * UNIT and blocks.end == blocks.used_nbytes == 0
