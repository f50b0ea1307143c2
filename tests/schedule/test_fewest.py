"""The fewest bytes through a cap: by hand, against every possible choice, and never more than a run by slots moves."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.layers.step import record
from asynctile.measure.simulate import simulate
from asynctile.program.operation import HOST, Operation
from asynctile.program.program import Program
from asynctile.schedule.fewest import Moved, fewest
from asynctile.storage.tile import Tile
from tests.layers.shapes import SHAPES

UNIT = 64


def program_of(entries: list[list[tuple[Tile, str]]], hosted: frozenset[int] = frozenset()) -> Program:
    program = Program("by hand")
    for index, entry in enumerate(entries):
        operation = Operation("work", tuple(tile for tile, _ in entry), "".join(how for _, how in entry))
        program.add(replace(operation, device=HOST) if index in hosted else operation)
    return program.finish()


def tiles(count: int, units: int = 1, *, persistent: bool = True) -> list[Tile]:
    return [Tile(f"t{number}", (units * UNIT // 4,), persistent=persistent) for number in range(count)]


def moved(program: Program, units: int) -> tuple[int, int]:
    found = fewest(program, units * UNIT, UNIT)
    assert found is not None
    assert sum(found.loaded.values()) == found.loaded_nbytes
    return found.loaded_nbytes // UNIT, found.written_nbytes // UNIT


def test_a_cycle_misses_what_does_not_fit_and_writes_only_what_changed() -> None:
    a, b, c = tiles(3, 4)
    read = program_of([[(a, "r")], [(b, "r")], [(c, "r")]])
    assert [moved(read, units) for units in (4, 8, 12)] == [(12, 0), (6, 0), (0, 0)]
    changed = program_of([[(a, "u")], [(b, "u")], [(c, "u")]])
    assert moved(changed, 4) == (12, 12)


def test_a_part_of_a_tile_may_be_evicted() -> None:
    a, b, c = tiles(3, 4)
    assert moved(program_of([[(a, "u")], [(b, "r")], [(a, "u")], [(c, "r")]]), 11) == (2, 0)


def test_evicting_tiles_to_be_overwritten_or_dead_costs_nothing() -> None:
    a, b = tiles(2)
    assert moved(program_of([[(a, "w")], [(a, "u")], [(b, "w")], [(b, "u")]]), 1) == (0, 0)
    short = tiles(3, persistent=False)
    assert moved(program_of([[(tile, how)] for tile in short for how in "wu"]), 1) == (0, 0)


def test_the_host_takes_changed_tiles_and_leaves_no_copy_of_those_it_changes() -> None:
    gradient, weight = tiles(2)
    hosted = program_of([[(gradient, "w")], [(weight, "u"), (gradient, "r")], [(weight, "r")]], frozenset({1}))
    assert moved(hosted, 2) == (1, 1)
    assert moved(program_of([[(gradient, "w")], [(weight, "u"), (gradient, "r")], [(weight, "r")]]), 2) == (0, 0)


def test_there_is_no_result_if_an_entry_does_not_fit() -> None:
    program = program_of([[(tile, "r") for tile in tiles(3)]])
    assert fewest(program, 3 * UNIT - 1, UNIT) is None
    assert fewest(program, 3 * UNIT, UNIT) == Moved(0, 0, {})


#: The tiles, by number, that each entry reads or updates.
entries = st.lists(st.sets(st.integers(0, 4), min_size=1, max_size=2), min_size=1, max_size=12)


@given(entries, st.integers(2, 4))
def test_no_other_choice_of_evictions_loads_less(touched: list[set[int]], units: int) -> None:
    temporaries = tiles(5, persistent=False)
    born: set[int] = set()
    described = []
    for numbers in touched:
        described.append([(temporaries[number], "u" if number in born else "w") for number in sorted(numbers)])
        born |= numbers
    assert moved(program_of(described), units)[0] == least(tuple(map(frozenset, touched)), units)


def least(touched: tuple[frozenset[int], ...], units: int) -> int:
    """Return the least number of loads, by trying every choice."""

    @cache
    def behind(position: int, here: frozenset[int]) -> int:
        if position == len(touched):
            return 0
        needed = touched[position]
        before = frozenset().union(*touched[:position])
        loads = len((needed - here) & before)
        others = here - needed
        stay = min(len(others), units - len(needed))
        return loads + min(behind(position + 1, needed | frozenset(kept)) for kept in combinations(sorted(others), stay))

    return behind(0, frozenset())


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6, 0.9])
def test_a_run_moves_no_fewer_bytes(share: float) -> None:
    shape = SHAPES["sequences cut, all ragged"]
    parameters = shape.parameters()
    rows = parameters.tiling.rows(shape.batch, shape.length, shape.micro_batches)
    program = record("step", parameters, rows)
    cap = int(share * shape.config.states_nbytes)
    least = fewest(program, cap, UNIT)
    assert least is not None
    run = simulate(program, list(parameters.states()), device_memory=cap)
    assert 0 < least.loaded_nbytes <= run.uploaded_nbytes
    assert least.written_nbytes > 0
