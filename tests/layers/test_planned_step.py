"""Steps planned for several nodes at once: one arrangement for all, and each node's own tiles."""

from __future__ import annotations

from collections import Counter

from asynctile.layers.arrangement import Arrangement, agreed
from asynctile.layers.machine import Machine, Work
from asynctile.layers.planned_step import planned_step, planned_steps
from tests.layers.training import NARROW

WORK = Work(batch_size=8, seq_len=17, replicas=8, tile=NARROW.tile)


def test_nodes_agree_on_the_most_passes_and_the_fewest_parts_that_keep_activations() -> None:
    assert agreed([Arrangement(2, 5), Arrangement(4, 3), Arrangement(1, 4)]) == Arrangement(4, 3)


def test_moments_stand_on_one_node_and_weights_on_all() -> None:
    steps = planned_steps(NARROW.config, WORK, Machine(device="cuda:0", nodes=3), range(3))
    weights = {tile for item in steps[0].parameters.values() for tile in item.weights.values()}
    homes = Counter(tile for step in steps for tile in step.standing)
    assert homes.keys() == set(steps[0].parameters.states())
    assert all(count == (3 if tile in weights else 1) for tile, count in homes.items())
    assert len({(step.kept, len(step.rows.passes)) for step in steps}) == 1


def test_node_0_of_many_has_the_step_that_is_planned_for_it_alone() -> None:
    machine = Machine(device="cuda:0", nodes=4)
    alone, first, *_ = planned_step(NARROW.config, WORK, machine), *planned_steps(NARROW.config, WORK, machine, [0, 3])
    named = [[(type(entry), [tile.name for tile in entry.tiles], entry.access) for entry in step.program.entries]
             for step in (alone, first)]  # fmt: skip
    assert named[0] == named[1] and alone.demand.exact == first.demand.exact
