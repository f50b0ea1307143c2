"""The decision how a step runs, made once: from a program and the cut of the caps to the schedule of its steady state.

A step after another program begins elsewhere. It has a schedule of its own, which ends where the steady one begins.

Pure: a function of its arguments. packing.py decides what moves in each tier, emission.py the order of the entries.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from asynctile.program.program import Program
from asynctile.program.view import views_of
from asynctile.schedule.below import Above, below
from asynctile.schedule.emission import Beneath, emit, emit_from
from asynctile.schedule.level import Level, Levels
from asynctile.schedule.lockstep import in_lockstep
from asynctile.schedule.pace import pace_of
from asynctile.schedule.packing import Packing, arriving, pack, resident, unpacked
from asynctile.schedule.rates import Rates
from asynctile.schedule.schedule import DISK, RAM, Schedule, tier_of
from asynctile.schedule.start import Seam, Stands, Start
from asynctile.schedule.uses import Uses, tiles_of, uses_of
from asynctile.storage.tile import Tile


class Cut(NamedTuple):
    """How one tier is cut.

    alignment: of its tiles, in bytes. cap: the bytes in which tiles come and go; None if all tiles stay, in slots. spread: for
    each size, over how many slots temporaries are spread. apart: how many free slots are kept, as in Level.
    """

    alignment: int
    cap: int | None
    spread: Mapping[int, int]
    apart: float = math.inf


class Space(NamedTuple):
    """The memory in which a step runs.

    top: the tier of its operations, on each device alike. ram: the tier below it over a link; None if RAM is the top. disk: the
    alignment of the file below RAM; None if there is none. depth: of prefetch; 0 for no overlap.
    """

    top: Cut
    ram: Cut | None
    disk: int | None
    depth: int
    rates: Rates


def decide(program: Program, space: Space) -> Schedule | None:
    """Return the schedule of a step of `program` in `space`, or None if the step does not fit."""
    above = list[Above]()
    for view in views_of(program):
        packing = plan_top(view.program, space, view.shared, above[0].packing.ahead if above else None)
        if packing is None:
            return None
        above.append(Above(view, packing))
    return decide_below(program, space, above)


def decide_below(program: Program, space: Space, above: Sequence[Above]) -> Schedule | None:
    """Return the schedule of a step, given the moves of each device; None if RAM has no room for them."""
    beneath = None
    if space.ram is not None and space.ram.cap is not None:
        beneath = _beneath(program, above, space, space.ram)
        if beneath is None:
            return None
    return _by_depth(emit(program, partial(_levels, space, len(above)), above, beneath), space)


def arrive(steady: Schedule, space: Space, start: Start) -> Schedule:
    """Return the schedule of a step that begins at `start` and ends where the step `steady` in the same space begins."""
    program, has_link, seams = steady.program, space.ram is not None, steady.seams
    pace, above = pace_of(space.rates, has_link=has_link), []
    for number, view in enumerate(views_of(program)):
        tier = tier_of(number)
        others = _others(view.program, start.tiles())
        uses = uses_of(
            view.program, space.top.alignment, pace, has_link=has_link, inputs_stand=space.top.cap is None, others=others)
        above.append(Above(view, _arriving(uses, space.top, start.tiers[tier], seams[tier])))
    beneath = None
    if space.ram is not None and space.ram.cap is not None:
        others = _others(program, start.tiles())
        below_it = pace_of(space.rates, has_link=False)
        uses = below(program, above, space.ram.alignment, pace, below_it, inputs_stand=False, others=others)
        beneath = Beneath(_arriving(uses, space.ram, start.tiers[RAM], seams[RAM]), uses.dying())
    return _by_depth(emit_from(start, program, _levels(space, len(above)), above, beneath, seams), space)


def _others(program: Program, tiles: Sequence[Tile]) -> list[Tile]:
    """Return those of `tiles` that the program does not use."""
    own = set(tiles_of(program))
    return [tile for tile in tiles if tile not in own]


def _arriving(uses: Uses, cut: Cut, stands: Sequence[Stands], seam: Seam) -> Packing:
    start, changed = {one.tile: one.offset for one in stands}, {one.tile for one in stands if one.changed}
    return arriving(uses, cut.cap, start, changed, seam)


def _by_depth(schedule: Schedule, space: Space) -> Schedule:
    """Return the schedule, without overlap if the depth of prefetch is 0."""
    return schedule if space.depth else replace(schedule, entries=in_lockstep(schedule.entries))


def _levels(space: Space, devices: int) -> Levels:
    tops = tuple(_level(tier_of(number), space.top) for number in range(devices))
    ram = None if space.ram is None else _level(RAM, space.ram)
    return Levels(tops, ram, None if space.disk is None else Level(DISK, space.disk, {}, is_packed=False))


def _level(number: int, cut: Cut) -> Level:
    return Level(number, cut.alignment, cut.spread, cut.apart, is_packed=cut.cap is not None)


def plan_top(program: Program, space: Space, shared: Collection[Tile] = (), ahead: int | None = None) -> Packing | None:
    """Return the moves of a step in the tier in which operations run, as a packing; None if the step does not fit.

    program: the view of one device. shared: its tiles that other devices use, too. ahead: how far the first device looks ahead,
    for the others; a device that looked further would load every weight from RAM and pass it on. In RAM, inputs stand between
    two steps if there is room, else they wait below.
    """
    has_link = space.ram is not None
    if space.top.cap is None and not has_link:
        return resident(program, space.top.alignment)
    pace = pace_of(space.rates, has_link=has_link)
    for inputs_stand in (True, False):
        uses = uses_of(program, space.top.alignment, pace, has_link=has_link, inputs_stand=inputs_stand)
        found = unpacked(uses, shared) if space.top.cap is None else pack(uses, space.top.cap, space.depth, ahead)
        if found is not None or has_link:
            break
    return found


def _beneath(program: Program, above: Sequence[Above], space: Space, ram: Cut) -> Beneath | None:
    """Return the moves of a step in RAM, None if it does not fit. Inputs stand there between two steps if there is room."""
    assert ram.cap is not None
    link, pace = pace_of(space.rates, has_link=True), pace_of(space.rates, has_link=False)
    for inputs_stand in (True, False):
        uses = below(program, above, ram.alignment, link, pace, inputs_stand=inputs_stand)
        found = pack(uses, ram.cap, space.depth)
        if found is not None:
            return Beneath(found, uses.dying())
    return None
