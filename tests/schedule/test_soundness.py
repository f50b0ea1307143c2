"""What is found or drawn can be run by; what breaks the law of packings is told from it, by numbers alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asynctile.cli.stress.work import Work
from asynctile.cli.stress.writer import write_program
from asynctile.program.operation import HOST
from asynctile.schedule.clock import CORES
from asynctile.schedule.packing import Act, Numbered, Packing, pack
from asynctile.schedule.soundness import is_sound
from asynctile.schedule.uses import Uses
from asynctile.storage.demand import ALIGNMENT
from tests.schedule.packings import check, drawn


def room_for(work: Work, share: float) -> int:
    """A cap between the floor, 0, and everything, 1."""
    floor = work.demand.alone().floor_nbytes
    return (floor + int(share * (work.demand.resident_nbytes - floor))) // ALIGNMENT * ALIGNMENT


def found_for(work: Work, share: float, *, has_link: bool) -> Packing | None:
    return pack(work.program, room_for(work, share), alignment=ALIGNMENT, pace=CORES, depth=2, has_link=has_link)


def sound(found: Numbered, packing: Packing, *, has_link: bool) -> bool:
    return is_sound(found, Uses(packing.program, packing.alignment, has_link), packing.cap, packing.alignment)


def is_valid(packing: Packing, *, has_link: bool) -> bool:
    try:
        check(packing, over_link=has_link)
    except (AssertionError, KeyError):
        return False
    return True


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1 << 32), share=st.floats(0, 1), has_link=st.booleans())
def test_what_is_found_can_be_run_by(seed: int, share: float, has_link: bool) -> None:
    work = write_program(random.Random(seed))
    packing = found_for(work, share, has_link=has_link)
    if packing is not None:
        assert sound(Numbered.of(packing, Uses(work.program, ALIGNMENT, has_link)), packing, has_link=has_link)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 32), share=st.floats(0, 1), has_link=st.booleans())
def test_one_number_put_wrong_is_judged_as_the_law_judges_it(seed: int, share: float, has_link: bool) -> None:
    """By packings that are as good as chance makes them. Over a link of operations in the tier alone: what those of the host
    find newer there depends on the step before, at which the law does not look.
    """
    chance = random.Random(seed)
    work = write_program(chance)
    program = work.program
    has_link = has_link and not any(entry.device == HOST for entry in program.entries)
    right = drawn(program, room_for(work, share), alignment=ALIGNMENT, over_link=has_link, chance=chance)
    uses = Uses(program, ALIGNMENT, has_link)
    assert sound(Numbered.of(right, uses), right, has_link=has_link)
    for _ in range(12):
        wrong = changed(Numbered.of(right, uses), chance, len(uses.tiles))
        valid = is_valid(wrong.packing(uses, right.cap, ALIGNMENT), has_link=has_link)
        assert sound(wrong, right, has_link=has_link) == valid


def changed(found: Numbered, chance: random.Random, tiles: int) -> Numbered:
    """With one move, birth or place at the start another, or left out."""
    moves, start = [[*moves] for moves in found.moves], {**found.start}
    births = {entry: [*born] for entry, born in found.births.items()}
    kind = chance.choice(["moves", "births", "start"])
    busy = [index for index, there in enumerate(moves) if there]
    if kind == "moves" and busy:
        there = moves[chance.choice(busy)]
        act, tile, offset = there[place := chance.randrange(len(there))]
        there[place] = chance.choice([
            (chance.choice([*Act]), tile, offset),
            (act, chance.randrange(tiles), offset),
            (act, tile, offset + chance.choice([-1, 1]) * ALIGNMENT),
        ])
        if chance.randint(0, 3) == 0:
            del there[place]
    elif kind == "births" and births:
        born = births[chance.choice([*births])]
        tile, offset = born[place := chance.randrange(len(born))]
        born[place] = (tile, offset + chance.choice([-1, 1]) * ALIGNMENT)
        if chance.randint(0, 3) == 0:
            del born[place]
    elif start:
        start[chance.choice([*start])] += chance.choice([-1, 1]) * ALIGNMENT
    return found._replace(moves=moves, births=births, start=start)


@pytest.fixture(scope="module")
def found():
    """A packing in numbers, and itself."""
    work = write_program(random.Random(3))
    packing = found_for(work, 0.2, has_link=True)
    return Numbered.of(packing, Uses(work.program, ALIGNMENT, True)), packing


@pytest.mark.parametrize("wrong", [
    {"peak_nbytes": 1 << 62}, {"peak_nbytes": 1}, {"moves": []}, {"start": {1 << 40: 0}}, {"start": {-1: 0}},
    {"births": {-1: [(0, 0)]}}, {"births": {1 << 40: []}}, {"births": {0: [(1 << 40, 0)]}},
], ids=str)  # fmt: skip
def test_numbers_of_what_there_is_not_are_refused(found, wrong):
    numbers, packing = found
    assert sound(numbers, packing, has_link=True)
    assert not sound(numbers._replace(**wrong), packing, has_link=True)


def test_a_move_that_there_is_not_is_refused(found):
    numbers, packing = found
    for act in (-1, 3):
        moves = [[(act, tile, offset) for _, tile, offset in moves] for moves in numbers.moves]
        assert not sound(numbers._replace(moves=moves), packing, has_link=True)


def test_a_step_ends_where_it_began(found):
    numbers, packing = found
    tile, offset = next(iter(numbers.start.items()))
    moves = [*numbers.moves[:-1], [*numbers.moves[-1], (Act.LEAVE, tile, offset)]]
    assert not sound(numbers._replace(moves=moves), packing, has_link=True)
    assert sound(numbers._replace(moves=[*moves[:-1], [*moves[-1], (Act.LOAD, tile, offset)]]), packing, has_link=True)


def test_only_what_has_bytes_below_comes_from_there(found):
    """Before the step somebody's place is lent: to one that stays between steps, and to one that is yet to be made."""
    numbers, packing = found
    uses = Uses(packing.program, ALIGNMENT, True)
    home, offset = max(numbers.start.items(), key=lambda item: uses.sizes[item[0]])
    read = {uses.tiles.index(tile) for tile in packing.program.first_uses} - numbers.start.keys()
    temporary = uses.tiles.index(packing.program.temporaries[0])
    for guest, is_there in ((min(read), True), (temporary, False)):
        assert uses.sizes[guest] <= uses.sizes[home]
        visit = [(Act.LEAVE, home, offset), (Act.LOAD, guest, offset), (Act.LEAVE, guest, offset), (Act.LOAD, home, offset)]
        moves = [[*visit, *numbers.moves[0]], *numbers.moves[1:]]
        assert sound(numbers._replace(moves=moves), packing, has_link=True) == is_there
