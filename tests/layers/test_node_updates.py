"""Updates on the hosts of several nodes: each node's wish holds for its own tiles, and nodes that are alike wish alike."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from asynctile.layers.carriers import homes_of, table
from asynctile.layers.node_updates import ALL, NONE, tiles_on_host, wish_for
from asynctile.layers.parameters import Parameters
from asynctile.layers.step import record
from asynctile.layers.tiling import Tiling
from asynctile.layers.tuning import WHOLE, Tuning
from asynctile.layers.update_placement import NOWHERE
from asynctile.program.parts import part_of
from asynctile.schedule.rates import CORES
from asynctile.storage.tile import Tile
from tests.laws import law
from tests.layers.test_replicas_trained import REPLICAS, SHAPE, STATES


def parameters_of(tuning: Tuning = WHOLE) -> Parameters:
    return Parameters(SHAPE.config, Tiling(SHAPE.config, SHAPE.tile), tuning=tuning)


def owned(parameters: Parameters, nodes: int) -> tuple[dict[Tile, int], dict[Tile, int]]:
    """Return the nodes of moments and of the weights that they belong to."""
    homes = homes_of(parameters, nodes, 1)
    return homes, {item.weights[key]: homes[tile] for item in parameters.trained() for key, tile in item.exp_avg.items()}


def test_each_node_updates_as_many_of_its_own_matrices_as_it_wishes() -> None:
    homes, nodes = owned(parameters := parameters_of(), 4)
    found = tiles_on_host(parameters, homes, [ALL, NONE, "1/3", "1"])
    assert {tile for tile in found if nodes[tile] == 0} == {tile for tile, node in nodes.items() if node == 0}
    matrices = Counter(node for tile, node in nodes.items() if len(tile.shape) == 2)
    chosen = Counter(nodes[tile] for tile in found if nodes[tile])
    assert chosen == {2: matrices[2] // 3, 3: matrices[3]} and matrices[2] > 3
    assert all(len(tile.shape) == 2 for tile in found if nodes[tile]), "vectors stay on the device"
    assert tiles_on_host(parameters, homes, [NONE] * 4) == NOWHERE


def test_frozen_tensors_are_updated_nowhere() -> None:
    homes, _ = owned(parameters := parameters_of(Tuning(freeze=("h.*",))), 2)
    frozen = {tile for item in parameters.values() if not item.trains for tile in item.weights.values()}
    found = tiles_on_host(parameters, homes, [ALL, ALL])
    assert found == {*parameters.weights()} - frozen and frozen and found


@pytest.mark.parametrize(("nodes", "devices"), [(2, 1), law(4, 1), law(2, 2)])
def test_the_part_of_node_0_stands_for_the_parts_of_all(nodes: int, devices: int) -> None:
    parameters = parameters_of()
    homes = homes_of(parameters, nodes, devices)
    rows = parameters.tiling.rows(SHAPE.batch, SHAPE.length, 1, REPLICAS)
    whole = record("step", parameters, rows, carriers=table(REPLICAS, nodes * devices), nodes=nodes)
    rates, cap = replace(CORES, updated_per_s=5e9).on(devices), int(0.3 * STATES) * devices
    found = []
    for node in range(nodes):
        standing = [tile for tile in parameters.states() if homes.get(tile, node) == node]
        found.append(float(Fraction(wish_for(part_of(whole, node, devices), standing, cap, rates))))
    assert 0 < min(found) < 1 and max(found) - min(found) < 0.1


def test_a_node_whose_devices_hold_everything_wishes_for_no_update_on_its_host() -> None:
    parameters = parameters_of()
    rows = parameters.tiling.rows(SHAPE.batch, SHAPE.length, 1, REPLICAS)
    part = part_of(record("step", parameters, rows, carriers=table(REPLICAS, 2), nodes=2), 0, 1)
    assert wish_for(part, part.standing, 10 * STATES, CORES) == wish_for(part, part.standing, None, CORES) == NONE
