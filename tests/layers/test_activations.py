"""The memory of a step by the number of parts that keep their activations, and how many parts fit under given caps."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.layers.activations import Activations, Room, kept_if, most_kept, sizes_of
from asynctile.layers.parameters import Parameters
from asynctile.layers.step import parts_of, record
from asynctile.layers.tiling import Tiling
from asynctile.program.grain import FINE, Grain
from asynctile.program.needs import demand_of
from asynctile.storage.demand import Demand
from tests.laws import covering, examples
from tests.layers.families import FAMILIES
from tests.layers.shapes import SHAPES, Shape, shape

KINDS = ("step", "step_clipped", "gradients")
DEEP = dataclasses.replace(SHAPES["several sequences in a tile"], config=shape(40, 4, 67, 12, 32, 6, 10, n_layer=5).config)
#: No limit at all.
AMPLE = Room(None, 64)


def demand(parameters: Parameters, deep: Shape, kind: str, kept: int) -> Demand:
    """Return the demand of the real program."""
    rows = parameters.tiling.rows(deep.batch, deep.length, deep.micro_batches, deep.replicas)
    return demand_of([record(kind, parameters, rows, kept=kept)], parameters.states())


@examples(15)
@given(st.data())
def test_the_foreseen_demand_is_that_of_the_program(data: st.DataObject) -> None:
    """Models of one block foretell each size for deeper ones. Keeping never makes an operation hold more tiles at once."""
    draw = data.draw
    heads, micro_batches, replicas = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 4]))
    found = shape(
        heads * draw(st.integers(1, 8)), heads, draw(st.integers(2, 40)), 24, draw(st.integers(6, 24)),
        replicas * micro_batches * draw(st.integers(1, 3)), draw(st.integers(1, 24)), micro_batches=micro_batches,
        replicas=replicas, n_layer=draw(st.integers(1, 5)), n_inner=draw(st.none() | st.integers(1, 40)),
    )  # fmt: skip
    kind, precision = draw(st.sampled_from(KINDS)), draw(st.sampled_from(["fp32", "bf16"]))
    tiling = Tiling(found.config, found.tile, Grain(FINE.ladder, draw(st.integers(1, 4))))
    parameters = Parameters(found.config, tiling, precision)
    rows = tiling.rows(found.batch, found.length, found.micro_batches, found.replicas)
    activations = Activations(kind, found.config, tiling, rows, precision)
    demands = [demand(parameters, found, kind, kept) for kept in range(parts_of(found.config) + 1)]
    for kept, expected in enumerate(demands):
        assert sizes_of(parameters.states()) + activations.counts(kept) == Counter(expected.exact), kept
        assert expected.floor_nbytes <= demands[0].floor_nbytes


@pytest.mark.parametrize(("family", "kind", "replicas"), covering(FAMILIES, KINDS, [1, 2]))
def test_the_foreseen_demand_of_a_family_is_that_of_the_program(family: Shape, kind: str, replicas: int) -> None:
    deep = dataclasses.replace(family, config=dataclasses.replace(family.config, n_layer=3), batch=4, replicas=replicas)
    parameters = deep.parameters()
    rows = parameters.tiling.rows(deep.batch, deep.length, deep.micro_batches, deep.replicas)
    activations = Activations(kind, deep.config, parameters.tiling, rows)
    for kept in range(parts_of(deep.config) + 1):
        expected = demand(parameters, deep, kind, kept)
        assert sizes_of(parameters.states()) + activations.counts(kept) == Counter(expected.exact), kept


@pytest.mark.parametrize(("kind", "alignment"), covering(KINDS, [64, 4096]))
def test_as_many_parts_are_kept_as_fit_under_a_cap_and_not_one_more(kind: str, alignment: int) -> None:
    parameters = DEEP.parameters()
    rows = parameters.tiling.rows(DEEP.batch, DEEP.length, DEEP.micro_batches)
    activations, standing = Activations(kind, DEEP.config, parameters.tiling, rows), sizes_of(parameters.states())
    needed = [demand(parameters, DEEP, kind, kept).rounded(alignment).resident_nbytes for kept in range(7)]
    assert needed == sorted(set(needed)), "each part costs something here"
    for kept, nbytes in enumerate(needed):
        assert most_kept(activations, standing, [Room(nbytes, alignment)]) == kept
        assert most_kept(activations, standing, [Room(nbytes - 1, alignment)]) == max(0, kept - 1)
        for rooms in ([Room(nbytes, alignment), AMPLE], [AMPLE, Room(nbytes, alignment)]):
            assert most_kept(activations, standing, rooms) == kept, "each tier must hold it"
    assert most_kept(activations, standing, [AMPLE]) == parts_of(DEEP.config) == 6


def test_tiles_of_other_models_come_first() -> None:
    parameters, other = DEEP.parameters(), SHAPES["one tile of everything"].parameters()
    rows = parameters.tiling.rows(DEEP.batch, DEEP.length, DEEP.micro_batches)
    activations, standing = Activations("step", DEEP.config, parameters.tiling, rows), sizes_of(parameters.states())
    room = Room(demand(parameters, DEEP, "step", 3).resident_nbytes, 64)
    others = list(other.states())
    assert room.without(others).nbytes == (room.nbytes or 0) - demand_of([], others).resident_nbytes
    assert most_kept(activations, standing, [room]) == 3 > most_kept(activations, standing, [room.without(others)])
    assert AMPLE.without(others) == AMPLE


def test_all_or_nothing_needs_no_caps() -> None:
    assert (kept_if(True, DEEP.config), kept_if(False, DEEP.config)) == (0, 6)
