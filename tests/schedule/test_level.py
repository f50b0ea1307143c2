"""One tier during a step: the slot of each tile, its state, and the entries that have touched its bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from asynctile.schedule.level import Level
from asynctile.schedule.schedule import DISK, NOBODY, RAM, TOP, Place
from asynctile.storage.residency import ABSENT, CLEAN, DIRTY, STORED
from asynctile.storage.tile import Tile


def slots(spread: dict[int, int] | None = None) -> Level:
    return Level(RAM, 64, spread=spread or {}, is_packed=False)


def packed() -> Level:
    return Level(TOP, 64, spread={}, is_packed=True)


def tile(name: str, nbytes: int = 64, *, persistent: bool = True) -> Tile:
    return Tile(name, (nbytes,), np.uint8, persistent=persistent)


def temporary(name: str) -> Tile:
    return tile(name, persistent=False)


def test_a_persistent_tile_keeps_one_slot_of_its_size_rounded_up() -> None:
    level, a, b, large = slots(), tile("a"), tile("b", 3), tile("c", 65)
    assert [level.put(one) for one in (a, b, large)] == [Place(RAM, 64, 0), Place(RAM, 64, 1), Place(RAM, 128, 0)]
    level.leave(a, STORED)
    assert level.put(tile("d")) == Place(RAM, 64, 2)
    assert level.put(a) == Place(RAM, 64, 0)


def test_temporaries_take_the_slot_that_was_freed_last() -> None:
    level, first, second = slots(), temporary("a"), temporary("b")
    places = [level.put(one) for one in (first, second)]
    level.leave(first, None)
    level.leave(second, None)
    assert [level.put(temporary(name)) for name in "cde"] == [*reversed(places), Place(RAM, 64, 2)]


def test_in_turn_new_slots_come_first_and_then_those_freed_first() -> None:
    level, first = slots({64: 3}), temporary("a")
    assert level.put(first).index == 0
    level.leave(first, None)
    others = [temporary(name) for name in "bc"]
    assert [level.put(one).index for one in others] == [1, 2]
    for one in others:
        level.leave(one, None)
    assert [level.put(temporary(name)).index for name in "def"] == [0, 1, 2]


def test_in_a_packed_level_a_tile_goes_where_it_is_told() -> None:
    level, a = packed(), tile("a", 65)
    assert level.put(a, 192) == Place(TOP, 128, 192) == level.places[a]
    assert level.put(a, 0) == Place(TOP, 128, 0) == level.places[a]
    with pytest.raises(AssertionError, match="the packing has no offset for b"):
        level.put(tile("b"))


def test_the_peak_is_the_most_bytes_in_use_at_once() -> None:
    level, a, b = packed(), tile("a", 65), tile("b")
    level.put(a, 0)
    level.put(a, 128)  # moved, not there twice
    assert level.peak_nbytes == 128
    level.put(b, 0)
    level.leave(a, STORED)
    level.leave(a, STORED)
    level.put(tile("c"), 64)
    assert level.peak_nbytes == 192


def test_standings_name_each_tile_its_place_and_its_writer() -> None:
    level, here, below, dead, never = slots(), tile("a"), tile("b"), temporary("c"), tile("d")
    place = level.put(here)
    level.states[here], level.written[here], level.saved[here] = CLEAN, 4, 2
    level.put(below)
    level.states[below], level.written[below], level.saved[below] = DIRTY, 5, 6
    level.leave(below, STORED)
    level.put(dead)
    level.states[dead] = DIRTY
    level.leave(dead, None)
    found = {
        one.tile: (one.tier, one.state, one.place, one.written, one.saved) for one in level.stand([here, below, dead, never])
    }
    assert found == {here: (RAM, CLEAN, place, 4, 2), below: (RAM, STORED, None, NOBODY, 6)}


def test_a_dead_tile_has_saved_nothing() -> None:
    level, scratch = slots(), temporary("a")
    level.saved[scratch] = 3
    level.leave(scratch, None)
    level.states[scratch] = ABSENT
    assert [one.saved for one in level.stand([scratch])] == [NOBODY]


def told(touch: Callable[[Place, int, set[int]], None], place: Place, entry: int = 0) -> set[int]:
    """Return the entries that an entry which reads or writes there must wait for."""
    found: set[int] = set()
    touch(place, entry, found)
    return found


def test_slots_of_two_sizes_are_two_memories_and_a_packed_level_is_one() -> None:
    level = Level(DISK, 64, spread={}, is_packed=False)
    small, large = Place(DISK, 64, 1), Place(DISK, 128, 0)
    assert told(level.write, small) == set()
    assert told(level.read, large, 1) == set() and told(level.read, small, 2) == {0}
    assert told(level.write, Place(DISK, 64, 0), 3) == set() and told(level.write, small, 4) == {2}
    one = packed()
    assert told(one.write, Place(TOP, 64, 64)) == set()
    assert told(one.read, Place(TOP, 128, 0), 1) == {0}
    assert told(one.write, Place(TOP, 64, 0), 2) == {1} and told(one.write, Place(TOP, 64, 128), 3) == set()
