"""A packing is valid: nothing overlaps, operands are there when they are used, a step ends where it began, below the cap."""

from __future__ import annotations

import random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from asynctile.cli.stress.writer import write_program
from asynctile.layers.step import record
from asynctile.program.needs import demand_of
from asynctile.program.program import Program
from asynctile.schedule.clock import pace_of
from asynctile.schedule.packing import Act, Packing, pack
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import ALIGNMENT, Demand
from tests.layers.training import SMALL
from tests.schedule.packings import check, drawn


def packed(program: Program, demand: Demand, share: float, *, over_link: bool) -> Packing | None:
    """Under a cap between the floor, 0, and everything, 1."""
    alignment = ALIGNMENT if over_link else PAGE
    demand = demand.rounded(alignment) if over_link else demand.rounded(alignment).alone()
    cap = int(demand.floor_nbytes + share * (demand.resident_nbytes - demand.floor_nbytes))
    pace = pace_of("emulated" if over_link else "cpu")
    return pack(program, cap, alignment=alignment, pace=pace, depth=2, has_link=over_link)


@pytest.mark.parametrize("over_link", [True, False], ids=["over a link", "over a file"])
@pytest.mark.parametrize("kind", ["step", "step_clipped", "loss"])
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


@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(seed=st.integers(0, 1 << 32), share=st.floats(0, 1), over_link=st.booleans())
def test_so_is_any_program(seed: int, share: float, over_link: bool) -> None:
    work = write_program(random.Random(seed))
    packing = packed(work.program, work.demand, share, over_link=over_link)
    if packing is not None:  # else slots remain
        check(packing, over_link=over_link)


def test_what_is_not_valid_is_told_from_what_is() -> None:
    """The check above, checked: each packing with one of its moves left out, or an offset changed, is found out."""
    work = write_program(random.Random(3))
    demand = work.demand
    packing = drawn(work.program, 2 * demand.floor_nbytes, alignment=ALIGNMENT, over_link=True, chance=random.Random(1))
    check(packing, over_link=True)
    entries = [index for index, moves in enumerate(packing.moves) if moves]
    for index in entries[:: max(1, len(entries) // 8)]:
        without = (*packing.moves[:index], packing.moves[index][1:], *packing.moves[index + 1 :])
        broken = Packing(packing.program, packing.cap, packing.alignment, packing.start, without, packing.births,
                         packing.peak_nbytes)  # fmt: skip
        with pytest.raises((AssertionError, KeyError)):
            check(broken, over_link=True)
