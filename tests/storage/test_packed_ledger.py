"""The ledger of a packed arena: it follows its plan, and decisions that were not carried out are taken back whole."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asynctile.errors import AsynctileError
from asynctile.storage.arena import Arena
from asynctile.storage.ledger import Ledger
from asynctile.storage.move import Allocate, Evict, Load
from asynctile.storage.residency import CLEAN, DIRTY, STORED
from asynctile.storage.tile import NEVER, Tile

UNITS = 12
CAP = UNITS * 64


class Below:
    def take(self, residency):
        return object()

    def give(self, residency):
        pass


def packed(cap=CAP):
    arena = Arena(cap, evictable=True)
    arena.pack()
    return Ledger(arena, Below())


def stored(book, name, units=1):
    """Return a persistent tile whose bytes are below."""
    residency = book.of(Tile(name, (units * 16,), np.float32, persistent=True))
    residency.backing, residency.state = book.backing.take(residency), STORED
    return residency


def test_a_tile_goes_where_it_is_told():
    book, moves = packed(), []
    a = stored(book, "a", units=2)
    book.load_at(a, 128, moves)
    moves.append(book.evict(a))
    load, evict = moves
    assert [type(move) for move in moves] == [Load, Evict]
    assert (load.slot.offset, load.slot.nbytes, load.was) == (128, 128, STORED)
    assert (evict.slot, evict.write_back) == (load.slot, False)
    assert book.arena.used_nbytes == 0 and not book.resident


def test_a_tile_to_be_overwritten_goes_where_it_is_expected():
    book, moves = packed(), []
    a, t = stored(book, "a"), book.of(Tile("t", (16,)))
    book.load_at(a, 0, moves)
    book.expect(t.tile, 192)
    book.admit([a, t], "rw", moves)
    assert type(moves[-1]) is Allocate and moves[-1].residency is t and t.slot.offset == 192
    assert not book.arena.expected
    book.used(t, NEVER, True)
    book.release(t)
    book.expect(t.tile, 64)
    book.admit([t], "w", moves)
    assert t.slot.offset == 64


@pytest.mark.parametrize(("access", "expected"), [("w", False), ("r", True), ("u", False)])
def test_an_operand_without_a_planned_place_is_a_fault_that_names_it_before_anything_moves(access, expected):
    book, moves = packed(), []
    a, t = stored(book, "a"), book.of(Tile("t", (16,)))
    book.expect(t.tile, 128)
    if expected:
        book.expect(a.tile, 0)
    with pytest.raises(AsynctileError, match="tile a is stored and the plan has no place for it in device_memory"):
        book.admit([t, a], "w" + access, moves)
    assert not moves and t.slot is None and book.arena.used_nbytes == 0 and t.tile in book.arena.expected


def test_two_tiles_at_one_place_are_a_fault():
    book, moves = packed(), []
    book.load_at(stored(book, "a", units=2), 0, moves)
    b = stored(book, "b")
    with pytest.raises(AsynctileError, match="overlap"):
        book.load_at(b, 64, moves)
    assert b.slot is None and b.state is STORED


def test_slots_recorded_for_work_are_claimed_whatever_was_there():
    book, moves = packed(), []
    a, b = stored(book, "a", units=2), stored(book, "b", units=2)
    book.load_at(a, 0, moves)
    places = [book.arena.range_at(offset, 128) for offset in (0, 64, 256)]
    book.assume([(a, STORED, None, 9), (b, DIRTY, places[1], 4)])
    assert (a.slot, a.state, b.slot, b.state, b.next_use) == (None, STORED, places[1], DIRTY, 4)
    book.assume([(a, CLEAN, places[0], 7), (b, DIRTY, places[2], 4)])
    assert (a.slot, b.slot) == (places[0], places[2])
    assert book.arena.used_nbytes == book.arena.counted_nbytes == 256
    book.evict(a)
    book.load_at(a, 0, moves)
    assert a.slot.offset == 0


def free_offsets(book, units):
    """Return the offsets where a tile of that many units finds free space."""
    taken = {residency.slot.offset // 64 + unit for residency in book.resident for unit in range(residency.slot.nbytes // 64)}
    return [64 * start for start in range(UNITS - units + 1) if taken.isdisjoint(range(start, start + units))]


def standing(book, residencies):
    places = [None if one.slot is None else (one.slot, one.slot.offset, one.state) for one in residencies]
    return places, book.arena.used_nbytes, book.arena.counted_nbytes, set(book.resident)


@settings(max_examples=150)
@given(st.data())
def test_the_books_balance_after_any_moves_and_are_restored_when_these_are_taken_back(data):
    book = packed()
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=2))
    tiles = [stored(book, str(number), units) for number, units in enumerate(sizes)]
    births = [book.of(Tile(f"t{number}", (16 * number,))) for number in (1, 2, 3)]
    everyone = tiles + births
    for _ in range(data.draw(st.integers(1, 8))):
        before, moves = standing(book, everyone), []
        for _ in range(data.draw(st.integers(1, 6))):
            one = data.draw(st.sampled_from(everyone))
            free = free_offsets(book, -(-one.tile.nbytes // 64))
            if one.slot is not None and not (free and data.draw(st.booleans())):
                moves.append(book.evict(one))
            elif not free or one.slot is not None:
                continue
            elif one.state is STORED:
                book.load_at(one, data.draw(st.sampled_from(free)), moves)
            else:
                book.expect(one.tile, data.draw(st.sampled_from(free)))
                book.admit([one], "w", moves)
            spans = sorted((other.slot.offset, other.slot.offset + other.slot.nbytes) for other in book.resident)
            assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
            assert book.arena.used_nbytes == book.arena.counted_nbytes == sum(stop - start for start, stop in spans)
            assert book.peak_nbytes <= CAP
            assert set(book.resident) == {other for other in everyone if other.slot is not None}
        if data.draw(st.booleans()):
            for move in reversed(moves):
                book.undo(move)
            assert standing(book, everyone) == before
