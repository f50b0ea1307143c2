"""A packing is valid: nothing overlaps, operands are there when they are used, a step ends where it began, below the cap."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.cli.stress.writer import write_program
from asynctile.layers.step import record
from asynctile.program.needs import demand_of
from asynctile.program.operation import HOST, READ
from asynctile.program.program import Mark, Program
from asynctile.schedule.packing import Act, Packing, pack, resident, unpacked
from asynctile.schedule.uses import uses_of
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import ALIGNMENT, Demand, align
from asynctile.storage.tile import NEVER, Tile
from tests.laws import covering, examples
from tests.layers.shapes import Shape, shape
from tests.layers.training import SMALL
from tests.schedule.made import program_by
from tests.schedule.paces import OVER_FILE, OVER_LINK
from tests.schedule.packings import check, drawn

#: Tiles are whole cache lines, so that bytes can be compared with bounds that know of none.
EVEN = shape(64, 4, 128, 32, tile=64, batch=4, length=32, n_layer=2)


def packed(program: Program, demand: Demand, share: float, *, over_link: bool) -> Packing | None:
    """Pack a program under a cap between the floor (share 0) and everything (share 1)."""
    alignment = ALIGNMENT if over_link else PAGE
    demand = demand.rounded(alignment) if over_link else demand.rounded(alignment).alone()
    cap = int(demand.floor_nbytes + share * (demand.resident_nbytes - demand.floor_nbytes))
    pace = OVER_LINK if over_link else OVER_FILE
    return pack(uses_of(program, alignment, pace, has_link=over_link), cap, 2)


@pytest.mark.parametrize(
    ("kind", "over_link"), covering(["step", "step_clipped", "loss"], {"over a link": True, "over a file": False})
)
def test_a_step_of_a_training_is_packed_under_every_cap(kind: str, over_link: bool) -> None:
    parameters = SMALL.parameters()
    rows = parameters.tiling.rows(SMALL.batch, SMALL.length, SMALL.micro_batches)
    program = record(kind, parameters, rows, kept=0)
    demand = demand_of([program], parameters.states())
    moved = []
    for share in (0.05, 0.1, 0.2, 0.4, 0.7, 0.99):
        packing = packed(program, demand, share, over_link=over_link)
        assert packing is not None
        check(packing, over_link=over_link)
        moved.append(packing.nbytes(Act.LOAD))
    assert moved[0] > moved[-1]


def test_the_check_recognizes_invalid_packings() -> None:
    """This tests the check itself: it finds each packing with one move left out, or with one offset changed."""
    work = write_program(random.Random(3))
    demand = work.demand
    packing = drawn(work.program, 2 * demand.floor_nbytes, alignment=ALIGNMENT, over_link=True, chance=random.Random(1))
    check(packing, over_link=True)
    entries = [index for index, moves in enumerate(packing.moves) if moves]
    for index in entries[:: max(1, len(entries) // 8)]:
        without = (*packing.moves[:index], packing.moves[index][1:], *packing.moves[index + 1 :])
        with pytest.raises((AssertionError, KeyError)):
            check(replace(packing, moves=without), over_link=True)
    for tile in packing.start:
        with pytest.raises(AssertionError, match="newer than below"):
            check(replace(packing, changed=packing.changed ^ {tile}), over_link=True)


def nbytes(tiles: Iterable[Tile], alignment: int = ALIGNMENT) -> int:
    return sum(align(tile.nbytes, alignment) for tile in set(tiles))


def alive(program: Program) -> int:
    """Return the most bytes in use at once if no tile is ever evicted before it is dead."""
    stand, most = {*program.standing, *program.inputs.values()}, 0
    for entry, again in zip(program.entries, program.next_uses, strict=True):
        stand |= set(entry.tiles)
        most = max(most, nbytes(stand))
        stand -= {tile for tile, use in zip(entry.tiles, again, strict=True) if use == NEVER and not tile.persistent}
    return most


def step_of(made: Shape, kind: str, *, kept: int = 0, on_host: int = 0) -> Program:
    """Record a step. on_host: number of weight tiles that are updated on the host."""
    parameters = made.parameters()
    weights = [tile for parameter in parameters.values() for tile in parameter.weights.values()]
    rows = parameters.tiling.rows(made.batch, made.length, made.micro_batches)
    return record(kind, parameters, rows, kept=kept, on_host=frozenset(weights[:on_host]))


def checked(program: Program, cap: int, depth: int = 1) -> Packing:
    """Pack a program over a link, check the packing and return it."""
    packing = pack(uses_of(program, ALIGNMENT, OVER_LINK, has_link=True), cap, depth)
    assert packing is not None
    check(packing, over_link=True)
    return packing


@examples(25)
@given(st.randoms(use_true_random=False), st.sampled_from([1, 64, 256, 4096]), st.sampled_from([1, 2, 8, 100]), st.floats(0, 1),
       st.booleans())  # fmt: skip
def test_a_random_program_with_marks_and_every_kind_of_entry_is_packed_validly(
    bench: Any, chance: random.Random, alignment: int, depth: int, share: float, over_link: bool
) -> None:
    program = program_by(chance)
    sizes = [nbytes(entry.tiles, alignment) for entry in program.entries if not (over_link and entry.device == HOST)]
    given = nbytes(program.inputs.values(), alignment)
    floor, every = max(sizes, default=0), nbytes([*program.standing, *program.temporaries], alignment) + given
    cap = floor + int(share * (every - floor))
    packing = pack(uses_of(program, alignment, OVER_FILE, has_link=over_link), cap, depth)
    if packing is None:
        assert cap < floor + given
        return
    check(packing, over_link=over_link)
    if over_link:
        assert not program.entries or packing.nbytes(Act.LOAD) >= bench("optimum").least_bytes(program, cap).uploaded_nbytes


@pytest.mark.parametrize("kept", [0, 3])
@pytest.mark.parametrize(("kind", "on_host"), [("step", 0), ("step", 9), ("step_clipped", 9), ("gradients", 0), ("loss", 0)])
def test_a_step_loads_little_more_than_the_least_possible(bench: Any, kind: str, on_host: int, kept: int) -> None:
    program = step_of(EVEN, kind, kept=kept, on_host=on_host)
    for share in (0.4, 0.7):
        cap = int(share * alive(program))
        least = bench("optimum").least_bytes(program, cap).uploaded_nbytes
        assert least <= checked(program, cap).nbytes(Act.LOAD) <= 1.5 * least


@pytest.mark.parametrize("kind", ["step", "loss"])
def test_with_slightly_more_than_the_working_set_only_inputs_move(kind: str) -> None:
    for made in (SMALL, EVEN):
        program = step_of(made, kind)
        packing = checked(program, int(1.1 * alive(program)), depth=2)
        assert {planned.tile for planned in packing.planned()} <= set(program.inputs.values())
        assert packing.nbytes(Act.COPY) == 0


def test_moves_shrink_to_the_missing_bytes_as_a_cap_grows() -> None:
    program = step_of(EVEN, "step")
    most, inputs = alive(program), nbytes(program.inputs.values())
    caps = [int(most * share / 100) for share in (20, 30, 40, 50, 60, 70, 80, 85, 90, 93, 96, 99)]
    packings = [checked(program, cap) for cap in caps]
    loads = [packing.nbytes(Act.LOAD) - inputs for packing in packings]
    assert all(after <= 1.05 * before for before, after in pairwise(loads))
    assert loads[-1] <= 4 * (most - caps[-1])
    assert all(packing.nbytes(Act.COPY) <= packing.nbytes(Act.LOAD) for packing in packings)


@examples(40)
@given(seed=st.integers(0, 1 << 32), over_link=st.booleans())
def test_in_a_tier_that_holds_everything_tiles_are_loaded_once_and_leave_only_for_the_host(seed: int, over_link: bool) -> None:
    program = program_by(random.Random(seed), sizes=(1, 64, 200, 5000))
    uses = uses_of(program, ALIGNMENT, OVER_LINK, has_link=over_link)
    packing = unpacked(uses, ()) if over_link else resident(program, ALIGNMENT)
    standing = set(packing.start)
    for index, entry in enumerate(program.entries):
        on_host = over_link and entry.device == HOST
        for act, tile, _ in packing.moves[index]:
            if act is Act.LEAVE:
                assert on_host and tile in entry.tiles
                standing.discard(tile)
            else:
                assert act is Act.COPY or tile not in standing
                standing.add(tile)
        standing.update(tile for tile, _ in packing.births.get(index, ()))
        written = {tile for tile, how in zip(entry.tiles, entry.access, strict=True) if how != READ}
        if on_host:
            standing -= written
        else:
            assert standing.issuperset(entry.tiles)
        if isinstance(entry, Mark) and over_link:
            standing.difference_update(program.rewritten[entry.name])
    if not over_link:
        assert packing.changed == packing.start.keys() and not packing.nbytes(Act.LOAD)


#: Prints its packings.
AGAIN = """
from tests.schedule.test_packing import described
print(described())
"""


def described() -> str:
    """Return a digest of packings of some programs, by names of tiles."""
    programs = [step_of(EVEN, "step", on_host=3), *(program_by(random.Random(seed)) for seed in range(20))]
    found = hashlib.sha256()
    for program in programs:
        packing = pack(uses_of(program, ALIGNMENT, OVER_FILE, has_link=True), alive(program) * 2 // 3, 2)
        if packing is not None:
            moves = [[(act, tile.name, offset) for act, tile, offset in moves] for moves in packing.moves]
            births = [[(tile.name, offset) for tile, offset in born] for born in packing.births.values()]
            start = [(tile.name, offset) for tile, offset in packing.start.items()]
            changed = sorted(tile.name for tile in packing.changed)
            found.update(repr((moves, births, start, changed)).encode())
    return found.hexdigest()


def test_a_program_is_packed_in_the_same_way_in_every_process() -> None:
    there = subprocess.run([sys.executable, "-c", AGAIN], env={**os.environ, "PYTHONHASHSEED": "77"}, capture_output=True,
                           text=True, check=True)  # fmt: skip
    clutter = [Tile(str(index), (1,)) for index in range(1000)][::7]
    assert there.stdout.strip() == described() == described() and clutter
