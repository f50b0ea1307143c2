"""The entries of a step that follows a packing: kinds, places, waits, and the places of tiles at marks.

test_decide.py tests that every entry finds its bytes. Here packings are made by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from asynctile.program.operation import DEVICE, READ, UPDATE
from asynctile.program.program import Program
from asynctile.schedule.emission import emit
from asynctile.schedule.level import Level, Levels
from asynctile.schedule.packing import Act, Packing, Planned
from asynctile.schedule.schedule import RAM, TOP, Schedule, Standing
from asynctile.storage.errors import AsynctileError
from asynctile.storage.residency import DIRTY, STORED
from asynctile.storage.tile import Tile
from tests.schedule.packings import alone
from tests.schedule.test_decide import step

LOAD, LEAVE, COPY = Act.LOAD, Act.LEAVE, Act.COPY
#: Bytes of a tile, and of an alignment.
SIZE = 64


def tile(name: str) -> Tile:
    return Tile(name, (SIZE,), np.uint8, persistent=True)


def packing(
    program: Program,
    moves: Mapping[int, Sequence[tuple[Act, Tile, int]]],
    *,
    start: Mapping[Tile, int] | None = None,
    changed: Sequence[Tile] = (),
    births: Mapping[int, Mapping[Tile, int]] | None = None,
) -> Packing:
    planned = tuple(tuple(Planned(*move) for move in moves.get(index, ())) for index in range(len(program) + 1))
    born = {index: tuple(tiles.items()) for index, tiles in (births or {}).items()}
    return Packing(program, 8 * SIZE, SIZE, start or {}, frozenset(changed), planned, born)


def on_device() -> Level:
    return Level(TOP, SIZE, spread={}, is_packed=True)


def over_ram(packing: Packing) -> Schedule:
    """Emit the schedule on a packed device above RAM that holds everything."""
    ram = Level(RAM, SIZE, spread={}, is_packed=False)
    return emit(packing.program, lambda: Levels((on_device(),), ram, None), [alone(packing)], None)


def told(schedule: Schedule) -> list[tuple[str, list[tuple[int, int]], list[int], list[int]]]:
    """Return the kind of each entry, its places, the entries it waits for, and those it comes after."""
    return [
        (entry.kind.name.lower(), [(place.tier, place.index) for place in entry.places], [*entry.waits], [*entry.after])
        for entry in schedule.entries
    ]


def standing(stands: Sequence[Standing], tile: Tile, tier: int) -> Standing:
    return next(one for one in stands if one.tile is tile and one.tier == tier)


def test_a_changed_tile_is_written_back_and_an_unchanged_one_is_only_evicted() -> None:
    a, b = tile("a"), tile("b")
    program = step((DEVICE, {a: READ, b: UPDATE}))
    found = over_ram(packing(program, {0: [(LOAD, a, 0), (LOAD, b, 64)], 1: [(LEAVE, a, 0), (LEAVE, b, 64)]}))
    assert told(found) == [
        ("upload", [(TOP, 0), (RAM, 0)], [], []),
        ("upload", [(TOP, 64), (RAM, 1)], [], []),
        ("operation", [(TOP, 0), (TOP, 64)], [0, 1], []),
        ("download", [(RAM, 1), (TOP, 64)], [2], [1]),
    ]
    assert [one.state for one in found.start] == [STORED, STORED, DIRTY, DIRTY]


def test_only_a_packed_tier_copies_tiles_within_itself() -> None:
    a = tile("a")
    made = packing(step((DEVICE, {a: UPDATE})), {0: [(COPY, a, 64)], 1: [(COPY, a, 0)]}, start={a: 0}, changed=[a])
    assert told(over_ram(made)) == [
        ("copy", [(TOP, 64), (TOP, 0)], [], []),
        ("operation", [(TOP, 64)], [0], []),
        ("copy", [(TOP, 0), (TOP, 64)], [1], [0]),
    ]
    slots, ram = (Level(number, SIZE, spread={}, is_packed=False) for number in (TOP, RAM))
    found = emit(made.program, lambda: Levels((slots,), ram, None), [alone(made)], None)
    assert told(found) == [("operation", [(TOP, 0)], [], [])]


@pytest.mark.parametrize(
    ("moves", "complaint"),
    [
        ({0: [(LEAVE, "b", 64)]}, "was to leave tile b at byte 64, but it stands nowhere"),
        ({0: [(COPY, "b", 64)]}, "was to copy tile b at byte 64, but it stands nowhere"),
        ({0: [(LOAD, "a", 64)]}, "was to load tile a at byte 64, but it stands at 0"),
        ({1: [(LEAVE, "a", 64)]}, "was to leave tile a at byte 64, but it stands at 0"),
        ({1: [(LEAVE, "a", 0)]}, "does not end at its seam"),
    ],
)
def test_a_move_that_contradicts_the_places_of_tiles_is_refused(
    moves: dict[int, list[tuple[Act, str, int]]], complaint: str
) -> None:
    tiles = {name: tile(name) for name in "ab"}
    program = step((DEVICE, {tiles["a"]: READ}))
    named = {index: [(act, tiles[name], offset) for act, name, offset in here] for index, here in moves.items()}
    with pytest.raises(AsynctileError, match=complaint):
        over_ram(packing(program, named, start={tiles["a"]: 0}))
