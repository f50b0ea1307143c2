"""One tier during a step: the slot of each tile, its state, and the entries that have touched its bytes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from asynctile.schedule.level import Level
from asynctile.schedule.schedule import RAM, TOP, Place
from asynctile.storage.residency import STORED
from asynctile.storage.tile import Tile


def slots(spread: dict[int, int] | None = None, apart: float = math.inf) -> Level:
    return Level(RAM, 64, spread=spread or {}, apart=apart, is_packed=False)


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


def test_temporaries_take_the_slot_that_was_freed_first() -> None:
    level, first, second = slots(), temporary("a"), temporary("b")
    places = [level.put(one) for one in (first, second)]
    level.leave(second, None)
    level.leave(first, None)
    assert [level.put(temporary(name)) for name in "cde"] == [*reversed(places), Place(RAM, 64, 2)]


def test_temporaries_that_come_and_go_take_so_many_slots_in_turn_as_are_kept_apart() -> None:
    taken = {}
    for apart in (0, 1, 3, 10):
        level = slots({64: 5}, apart)
        taken[apart] = []
        for number in range(8):
            one = temporary(f"{number}")
            taken[apart].append(level.put(one).index)
            level.leave(one, None)
    assert taken == {0: [0] * 8, 1: [0] * 8, 3: [0, 1, 2, 0, 1, 2, 0, 1], 10: [0, 1, 2, 3, 4, 0, 1, 2]}


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
