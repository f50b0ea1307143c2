"""A schedule from any start keeps the law of schedules, and ends where the program's own schedule begins."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.program.operation import DEVICE, READ, UPDATE
from asynctile.schedule.decide import Space, arrive, decide
from asynctile.schedule.schedule import TOP, Kind, Schedule
from asynctile.schedule.start import IN_SLOT, Stands, Start
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.tile import Tile
from tests.laws import examples
from tests.schedule.schedules import check_arrival
from tests.schedule.spaces import KINDS, floor, ram_floor
from tests.schedule.starts import start_by
from tests.schedule.test_decide import SEEDS, drawn, pages, step, three_tiers


@pytest.mark.parametrize("kind", KINDS)
@examples(50)
@given(seed=SEEDS, over_file=st.booleans())
def test_from_any_start_entries_find_their_bytes_and_tiles_end_at_the_seam(kind: str, seed: int, over_file: bool) -> None:
    program, space, chance = drawn(seed, kind)
    space = space._replace(disk=PAGE) if over_file else space
    steady = decide(program, space)
    if steady is not None:
        check_arrival(arrive(steady, space, start_by(chance, program, space)), steady, space, chance)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "+" in kind])
@examples(25)
@given(seed=SEEDS)
def test_a_cap_at_the_floor_works_from_every_start(kind: str, seed: int) -> None:
    program, space, chance = drawn(seed, kind)
    if space.top.cap is not None:
        least = floor(program, space.top.alignment, has_link=space.ram is not None)
        space = space._replace(top=space.top._replace(cap=least))
    if space.ram is not None and space.ram.cap is not None:
        space = space._replace(ram=space.ram._replace(cap=ram_floor(program)))
    steady = decide(program, space)
    assert steady is not None
    check_arrival(arrive(steady, space, start_by(chance, program, space)), steady, space, chance)


def moved(schedule: Schedule) -> list[tuple[Kind, Tile]]:
    return [(entry.kind, entry.what) for entry in schedule.entries if isinstance(entry.what, Tile)]


def at_seam(schedule: Schedule) -> Start:
    """Return the start at which a schedule begins."""
    found = tuple(
        tuple(Stands(one.tile, one.place.index, one.state == "dirty") for one in schedule.start
              if one.tier == tier and one.place is not None)
        for tier in (0, 1)
    )  # fmt: skip
    return Start(found, frozenset())


def in_ram(*tiles: Tile) -> tuple[Stands, ...]:
    return tuple(Stands(tile, IN_SLOT, False) for tile in tiles)


def device(cap: int) -> Space:
    """Return a packed device of `cap` pages over RAM that holds everything."""
    return three_tiers(cap, 1)._replace(ram=three_tiers(None, 1).top, disk=None)


def test_from_its_own_seam_a_step_moves_as_usual() -> None:
    tiles = [pages(f"w{n}") for n in range(6)]
    program, space = step(*((DEVICE, {tile: UPDATE}) for tile in tiles)), device(3)
    steady = decide(program, space)
    assert steady is not None
    again = arrive(steady, space, at_seam(steady))
    assert sorted((kind, tile.name) for kind, tile in moved(again)) == sorted((kind, tile.name) for kind, tile in moved(steady))


def test_from_nothing_only_missing_tiles_are_loaded_and_each_once_where_there_is_room() -> None:
    a, b = pages("a"), pages("b")
    program, space = step((DEVICE, {a: READ}), (DEVICE, {b: UPDATE})), device(4)
    steady = decide(program, space)
    assert steady is not None and not moved(steady)
    start = Start(((), in_ram(a, b)), frozenset())
    assert moved(arrive(steady, space, start)) == [(Kind.UPLOAD, a), (Kind.UPLOAD, b)]


def test_a_changed_tile_that_is_only_read_is_written_back_once_and_stays() -> None:
    a, b = pages("a"), pages("b")
    program, space = step((DEVICE, {a: READ}), (DEVICE, {b: READ})), device(4)
    steady = decide(program, space)
    assert steady is not None
    dirty = at_seam(steady)
    dirty = Start((tuple(one._replace(changed=True) for one in dirty.tiers[TOP]), dirty.tiers[1]), frozenset())
    assert sorted(moved(arrive(steady, space, dirty)), key=str) == sorted([(Kind.DOWNLOAD, a), (Kind.DOWNLOAD, b)], key=str)


def test_tiles_of_another_program_leave_and_only_changed_ones_are_written_back() -> None:
    a, clean, changed = pages("a"), pages("clean"), pages("changed")
    program, space = step((DEVICE, {a: READ})), device(3)
    steady = decide(program, space)
    assert steady is not None
    start = Start(((Stands(clean, 0, False), Stands(changed, PAGE, True)), in_ram(a, clean)), frozenset())
    schedule = arrive(steady, space, start)
    assert sorted(moved(schedule), key=str) == sorted([(Kind.UPLOAD, a), (Kind.DOWNLOAD, changed)], key=str)
    check_arrival(schedule, steady, space, random.Random(0))
