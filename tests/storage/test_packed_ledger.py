"""The ledger of a packed arena: it records where runs leave tiles, and evictions that were not made are taken back whole."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.errors import AsynctileError
from asynctile.storage.arena import Arena
from asynctile.storage.ledger import Ledger
from asynctile.storage.residency import CLEAN, DIRTY, STORED
from asynctile.storage.tile import NEVER, Tile
from tests.laws import examples

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


def stand(book, residency, offset, state=CLEAN):
    """Record that a run has left the tile at `offset`."""
    book.assume([(residency, state, book.arena.range_at(offset, residency.tile.nbytes), NEVER)])


def test_a_tile_leaves_the_place_where_a_run_has_left_it():
    book = packed()
    a, b = stored(book, "a", units=2), stored(book, "b")
    stand(book, a, 128)
    stand(book, b, 64, DIRTY)
    clean, dirty = book.evict(a), book.evict(b)
    assert (clean.slot.offset, clean.slot.nbytes, clean.was, clean.write_back) == (128, 128, CLEAN, False)
    assert (dirty.slot.offset, dirty.slot.nbytes, dirty.was, dirty.write_back) == (64, 64, DIRTY, True)
    assert book.arena.used_nbytes == 0 and not book.resident


@pytest.mark.parametrize("access", ["r", "u", "w"])
def test_an_operand_without_a_place_is_a_fault_that_names_it_before_anything_moves(access):
    book, moves = packed(), []
    a, there = stored(book, "a"), stored(book, "there")
    stand(book, there, 128)
    book.admit([there], access, moves)
    with pytest.raises(AsynctileError, match="tile a is stored and the plan has no place for it in device_memory"):
        book.admit([there, a], access * 2, moves)
    assert not moves and a.slot is None and book.arena.used_nbytes == 64


def test_two_tiles_at_one_place_are_a_fault():
    book = packed()
    a, b = stored(book, "a", units=2), stored(book, "b")
    stand(book, a, 0)
    with pytest.raises(AsynctileError, match="overlap"):
        stand(book, b, 64)
    assert b.slot is None and set(book.resident) == {a}


def test_slots_recorded_for_work_are_claimed_whatever_was_there():
    book = packed()
    a, b = stored(book, "a", units=2), stored(book, "b", units=2)
    stand(book, a, 0)
    places = [book.arena.range_at(offset, 128) for offset in (0, 64, 256)]
    book.assume([(a, STORED, None, 9), (b, DIRTY, places[1], 4)])
    assert (a.slot, a.state, b.slot, b.state, b.next_use) == (None, STORED, places[1], DIRTY, 4)
    book.assume([(a, CLEAN, places[0], 7), (b, DIRTY, places[2], 4)])
    assert (a.slot, b.slot) == (places[0], places[2])
    assert book.arena.used_nbytes == book.arena.counted_nbytes == 256
    book.evict(a)
    stand(book, a, 0)
    assert a.slot.offset == 0 and a.slot is not places[0]


def free_offsets(book, units):
    """Return the offsets where a tile of that many units finds free space."""
    taken = {residency.slot.offset // 64 + unit for residency in book.resident for unit in range(residency.slot.nbytes // 64)}
    return [64 * start for start in range(UNITS - units + 1) if taken.isdisjoint(range(start, start + units))]


def standing(book, residencies):
    places = [None if one.slot is None else (one.slot, one.slot.offset, one.state) for one in residencies]
    return places, book.arena.used_nbytes, book.arena.counted_nbytes, set(book.resident)


@examples(150)
@given(st.data())
def test_the_books_balance_after_any_runs_and_evictions_and_when_these_are_taken_back(data):
    book = packed()
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=2))
    tiles = [stored(book, str(number), units) for number, units in enumerate(sizes)]
    for _ in range(data.draw(st.integers(1, 8))):
        for one in tiles:
            free = free_offsets(book, one.tile.nbytes // 64)
            if one.slot is None and free and data.draw(st.booleans()):
                stand(book, one, data.draw(st.sampled_from(free)), data.draw(st.sampled_from((CLEAN, DIRTY))))
        before, moves = standing(book, tiles), []
        for one in data.draw(st.permutations(list(book.resident))):
            if data.draw(st.booleans()):
                moves.append(book.evict(one))
            spans = sorted((other.slot.offset, other.slot.offset + other.slot.nbytes) for other in book.resident)
            assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
            assert book.arena.used_nbytes == book.arena.counted_nbytes == sum(stop - start for start, stop in spans) <= CAP
            assert set(book.resident) == {other for other in tiles if other.slot is not None}
        if data.draw(st.booleans()):
            for move in reversed(moves):
                book.undo(move)
            assert standing(book, tiles) == before
