"""The decision how a step runs, made once: from a program and the cut of the caps to the schedule of its steady state.

A step after another program begins elsewhere. It has a schedule of its own, which ends where the steady one begins.

Pure: a function of its arguments. packing.py decides what moves in each tier, emission.py the order of the entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from asynctile.program.program import Program
from asynctile.schedule.below import below
from asynctile.schedule.emission import Beneath, emit, emit_from
from asynctile.schedule.level import Level, Levels
from asynctile.schedule.lockstep import in_lockstep
from asynctile.schedule.pace import pace_of
from asynctile.schedule.packing import Packing, arriving, pack, resident, unpacked
from asynctile.schedule.rates import Rates
from asynctile.schedule.schedule import DISK, RAM, TOP, Schedule
from asynctile.schedule.start import Seam, Stands, Start
from asynctile.schedule.uses import Uses, tiles_of, uses_of


class Cut(NamedTuple):
    """How one tier is cut.

    alignment: of its tiles, in bytes. cap: the bytes in which tiles come and go; None if all tiles stay, in slots. spread: for
    each size, over how many slots temporaries are spread.
    """

    alignment: int
    cap: int | None
    spread: Mapping[int, int]


class Space(NamedTuple):
    """The memory in which a step runs.

    top: the tier of its operations. ram: the tier below it over a link; None if RAM is the top. disk: the alignment of the file
    below RAM; None if there is none. depth: of prefetch; 0 for no overlap.
    """

    top: Cut
    ram: Cut | None
    disk: int | None
    depth: int
    rates: Rates


def decide(program: Program, space: Space, packing: Packing | None = None) -> Schedule | None:
    """Return the schedule of a step of `program` in `space`, or None if the step does not fit.

    packing: of the top tier; None: work it out here.
    """
    packing = packing or plan_top(program, space)
    beneath = None
    if packing is not None and space.ram is not None and space.ram.cap is not None:
        beneath = _beneath(packing, space, space.ram)
        packing = packing if beneath is not None else None
    if packing is None:
        return None
    return _by_depth(emit(partial(_levels, space), packing, beneath), space)


def arrive(steady: Schedule, space: Space, start: Start) -> Schedule:
    """Return the schedule of a step that begins at `start` and ends where the step `steady` in the same space begins."""
    program, has_link, seams = steady.program, space.ram is not None, steady.seams
    own = set(tiles_of(program))
    others = [tile for tile in start.tiles() if tile not in own]
    uses = uses_of(
        program, space.top.alignment, pace_of(space.rates, has_link=has_link), has_link=has_link,
        inputs_stand=space.top.cap is None, others=others,
    )  # fmt: skip
    packing, beneath = _arriving(uses, space.top, start.tiers[TOP], seams[TOP]), None
    if space.ram is not None and space.ram.cap is not None:
        link, pace = pace_of(space.rates, has_link=True), pace_of(space.rates, has_link=False)
        uses = below(packing, space.ram.alignment, link, pace, inputs_stand=False, others=others)
        beneath = Beneath(_arriving(uses, space.ram, start.tiers[RAM], seams[RAM]), uses.dying())
    return _by_depth(emit_from(start, _levels(space), packing, beneath, seams), space)


def _arriving(uses: Uses, cut: Cut, stands: Sequence[Stands], seam: Seam) -> Packing:
    start, changed = {one.tile: one.offset for one in stands}, {one.tile for one in stands if one.changed}
    return arriving(uses, cut.cap, start, changed, seam)


def _by_depth(schedule: Schedule, space: Space) -> Schedule:
    """Return the schedule, without overlap if the depth of prefetch is 0."""
    return schedule if space.depth else replace(schedule, entries=in_lockstep(schedule.entries))


def _levels(space: Space) -> Levels:
    top, ram = (
        None if cut is None else Level(number, cut.alignment, cut.spread, is_packed=cut.cap is not None)
        for number, cut in ((TOP, space.top), (RAM, space.ram))
    )
    assert top is not None
    return Levels(top, ram, None if space.disk is None else Level(DISK, space.disk, {}, is_packed=False))


def plan_top(program: Program, space: Space) -> Packing | None:
    """Return the moves of a step in the tier in which operations run, as a packing; None if the step does not fit.

    In RAM, inputs stand between two steps if there is room, else they wait below.
    """
    has_link = space.ram is not None
    if space.top.cap is None and not has_link:
        return resident(program, space.top.alignment)
    pace = pace_of(space.rates, has_link=has_link)
    for inputs_stand in (True, False):
        uses = uses_of(program, space.top.alignment, pace, has_link=has_link, inputs_stand=inputs_stand)
        found = unpacked(uses) if space.top.cap is None else pack(uses, space.top.cap, space.depth)
        if found is not None or has_link:
            break
    return found


def _beneath(packing: Packing, space: Space, ram: Cut) -> Beneath | None:
    """Return the moves of a step in RAM, None if it does not fit. Inputs stand there between two steps if there is room."""
    assert ram.cap is not None
    link, pace = pace_of(space.rates, has_link=True), pace_of(space.rates, has_link=False)
    for inputs_stand in (True, False):
        uses = below(packing, ram.alignment, link, pace, inputs_stand=inputs_stand)
        found = pack(uses, ram.cap, space.depth)
        if found is not None:
            return Beneath(found, uses.dying())
    return None
