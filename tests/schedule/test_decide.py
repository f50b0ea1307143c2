"""Every schedule that is decided keeps the law of schedules, in every kind of space, for any program."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.program.operation import DEVICE, HOST, READ, UPDATE, WRITE, Operation
from asynctile.program.program import Program, Shipment
from asynctile.schedule.decide import Cut, Space, decide, decide_below, plan_top
from asynctile.schedule.rates import CORES
from asynctile.schedule.schedule import RAM, TOP, Kind, Schedule
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.residency import ABSENT, CLEAN, DIRTY, STORED, State
from asynctile.storage.tile import Tile
from tests.laws import examples, law
from tests.schedule import packings
from tests.schedule.made import ON_A_NODE, program_by
from tests.schedule.schedules import Run, before, check
from tests.schedule.spaces import KINDS, SIZES, fits, space_by

SEEDS = st.integers(0, 1 << 32)


def drawn(seed: int, kind: str) -> tuple[Program, Space, random.Random]:
    chance = random.Random(f"{seed} {kind}")
    program = program_by(chance, sizes=SIZES, entries=chance.choice((6, 30, 60)))
    return program, space_by(chance, program, kind), chance


def check_decided(schedule: Schedule | None, program: Program, space: Space, chance: random.Random) -> None:
    """Raise AssertionError unless there is a schedule that keeps the law, or the program does not fit."""
    if schedule is None:
        assert not fits(program, space)
    else:
        check(schedule, space, chance)


@pytest.mark.parametrize("kind", KINDS)
@examples(40)
@given(seed=SEEDS)
def test_in_any_order_that_edges_allow_entries_find_their_bytes_and_standings_are_true(kind: str, seed: int) -> None:
    program, space, chance = drawn(seed, kind)
    check_decided(decide(program, space), program, space, chance)


@pytest.mark.parametrize("kind", KINDS)
@examples(40)
@given(seed=SEEDS)
def test_tiles_to_and_from_other_nodes_keep_the_law(kind: str, seed: int) -> None:
    chance = random.Random(f"{seed} {kind}")
    program = program_by(chance, sizes=SIZES, entries=chance.choice((6, 30, 60)), kinds=ON_A_NODE)
    space = space_by(chance, program, kind)
    check_decided(schedule := decide(program, space), program, space, chance)
    if schedule is not None:
        ships = [entry for entry in program.entries if isinstance(entry, Shipment)]
        away = [(entry.what, entry.node, entry.places[entry.places[0].tier >= 0].index) for entry in schedule.entries
                if entry.node is not None]  # fmt: skip
        assert away == [(one.tile, one.node, one.index) for one in ships], "each once, in the order of the program"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.partition(" ")[0].endswith("+")])
@examples(40)
@given(seed=SEEDS)
def test_the_law_holds_for_any_valid_packing(kind: str, seed: int) -> None:
    """Tiles are loaded, evicted and moved at random, where a good packing would leave them alone."""
    program, space, chance = drawn(seed, kind)
    alignment, over_link = space.top.alignment, space.ram is not None
    assert space.top.cap is not None
    cap = space.top.cap // alignment * alignment
    packing = packings.drawn(program, cap, alignment=alignment, over_link=over_link, chance=chance)
    check_decided(decide_below(program, space, [packings.alone(packing)]), program, space, chance)


def bare_edges(schedule: Schedule) -> list[tuple[int, int]]:
    """Return the edges (earlier, later) that nothing else implies, not even a mark in between at which the host writes."""
    given = [schedule.stretches[schedule.marks[name]] for name, tiles in schedule.program.rewritten.items() if tiles]
    found = []
    for later, entry in enumerate(schedule.entries):
        for earlier in (*entry.waits, *entry.after):
            rests = any(earlier < start <= later for start in given)
            if not rests and earlier not in before(schedule, later, (earlier, later)):
                found.append((earlier, later))
    return found


def is_seen(schedule: Schedule, space: Space, chance: random.Random, edge: tuple[int, int]) -> bool:
    """Return whether some order shows that an edge is missing."""
    try:
        for _ in range(3):
            Run(schedule, space, chance, rests=False, dropped=edge).run()
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("kind", [law(kind) if kind in ("cpu", "device", "device over ram+") else kind for kind in KINDS])
def test_without_an_edge_some_order_finds_other_bytes(kind: str) -> None:
    """This tests the law above.

    An edge may stay unseen: nobody may read the bytes overwritten out of turn, or the same bytes may be there already.
    """
    edges = missed = 0
    for seed in range(40):
        program, space, chance = drawn(seed, kind)
        schedule = decide(program, space)
        if schedule is None:
            continue
        bare = bare_edges(schedule)
        for earlier, later in chance.sample(bare, min(len(bare), 8)):
            edges += 1
            if not is_seen(schedule, space, chance, (earlier, later)):
                missed += 1
                is_copy = schedule.entries[earlier].kind is not Kind.OPERATION
                assert is_copy or earlier not in schedule.entries[later].waits, f"{earlier} before {later} of seed {seed}"
    assert edges > 150 and missed <= edges // 10


def step(*entries: tuple[str, dict[Tile, str]], program: Program | None = None) -> Program:
    """Record a step. Each entry: where it runs, and its operands with their access."""
    program = Program("by hand") if program is None else program
    for device, operands in entries:
        program.add(Operation("none", tuple(operands), "".join(operands.values()), device=device))
    return program.finish()


def pages(name: str, count: int = 1) -> Tile:
    return Tile(name, (count * PAGE,), np.uint8, persistent=True)


def three_tiers(top: int | None, ram: int) -> Space:
    """Return a space whose caps are in pages."""
    return Space(Cut(PAGE, None if top is None else top * PAGE, {}), Cut(PAGE, ram * PAGE, {}), True, 1, CORES)


def standing(schedule: Schedule, tier: int, tile: Tile) -> State | None:
    return next((one.state for one in schedule.start if one.tier == tier and one.tile is tile), None)


def test_a_program_that_does_not_fit_has_no_schedule() -> None:
    a, b = pages("a"), pages("b")
    program = step((DEVICE, {a: READ, b: UPDATE}))
    cpu = Space(Cut(PAGE, PAGE, {}), None, True, 1, CORES)
    assert plan_top(program, cpu) is None and decide(program, cpu) is None
    assert decide(program, three_tiers(1, 4)) is None
    on_host = step((HOST, {a: READ, b: UPDATE}))
    assert decide(on_host, three_tiers(2, 1)) is None and decide(on_host, three_tiers(2, 2)) is not None


def test_inputs_stay_in_ram_between_two_steps_if_there_is_room_and_below_otherwise() -> None:
    program = Program("by hand")
    given = [program.input(f"x{n}", (PAGE,), np.uint8) for n in range(4)]
    step(*((DEVICE, {one: READ}) for one in given), program=program)
    roomy, narrow = decide(program, three_tiers(1, 4)), decide(program, three_tiers(1, 2))
    assert roomy is not None and roomy.inputs_below() == []
    assert narrow is not None and len(narrow.inputs_below()) >= 2
    for schedule, cap in ((roomy, 4), (narrow, 2)):
        check(schedule, three_tiers(1, cap), random.Random(0))


def test_ram_keeps_no_copy_of_tiles_that_a_device_keeps_and_changes() -> None:
    """RAM has one page for two tiles, and neither ever moves."""
    weight, other = pages("w"), pages("o")
    program = step((DEVICE, {weight: UPDATE}), (DEVICE, {other: READ, weight: UPDATE}))
    space = three_tiers(None, 1)
    schedule = decide(program, space)
    assert schedule is not None
    check(schedule, space, random.Random(0))
    assert standing(schedule, TOP, weight) is DIRTY and standing(schedule, RAM, weight) is ABSENT
    assert not any(entry.what is weight for entry in schedule.entries)


def test_a_tile_loaded_and_evicted_before_it_is_overwritten_is_not_lost_in_between() -> None:
    """No entry needs its bytes, because it is overwritten whole later. A caller that leaves at the mark in between does."""
    old, other = pages("w"), pages("o", 2)
    program = Program("by hand")
    for number, operands in enumerate(({old: READ}, {other: READ}, {old: WRITE})):
        program.add(Operation("none", tuple(operands), "".join(operands.values())))
        program.mark(f"m{number}")
    space = three_tiers(2, 3)
    schedule = decide(program.finish(), space)
    assert schedule is not None
    check(schedule, space, random.Random(0))
    stands = {one.tier: one.state for one in schedule.at["m1"] if one.tile is old}
    assert stands[TOP] is STORED and stands[RAM] in (CLEAN, DIRTY, STORED)
