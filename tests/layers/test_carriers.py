"""Who carries what on several devices: rows stay with their replica, owners update, and changes pass before they are used."""

from __future__ import annotations

from collections import Counter

import pytest

from asynctile.layers.carriers import forward_table, nearest, owners, table
from asynctile.layers.parameters import Parameters
from asynctile.layers.step import record
from asynctile.layers.tiling import Tiling
from asynctile.program.operation import HOST, READ, WRITE, device_named, number_of
from asynctile.program.program import Handover, Mark, Passage, Program
from asynctile.storage.tile import Tile
from tests.laws import law
from tests.layers.shapes import LIGHT, Shape
from tests.layers.shapes import shape as make_shape

SHAPE = LIGHT["several sequences in a tile"]
TABLES = [(0, 0, 1, 1), (0, 0, 0, 1), (0, 1, 2, 3)]
STEPS = [("step", TABLES[0]), ("step", TABLES[2]), ("step_clipped", TABLES[1]), ("gradients", TABLES[1])]
OTHERS = [(kind, one) for kind in ("step", "step_clipped", "gradients") for one in TABLES if (kind, one) not in STEPS]


def parameters_of(shape: Shape, precision: str = "fp32") -> Parameters:
    return Parameters(shape.config, Tiling(shape.config, shape.tile), precision)


def recorded(
    kind: str, carriers: tuple[int, ...], *, precision: str = "fp32", on_host: bool = False, shape: Shape = SHAPE
) -> tuple[Program, Parameters]:
    parameters = parameters_of(shape, precision)
    rows = parameters.tiling.rows(8, shape.length, 1, len(carriers))
    chosen = list(parameters.weights()) if on_host else ()
    return record(kind, parameters, rows, on_host=chosen, carriers=carriers), parameters


def test_neighbouring_replicas_share_a_device_and_every_device_has_its_part() -> None:
    assert table(1, 1) == (0,) and table(4, 1) == (0, 0, 0, 0) and table(4, 2) == (0, 0, 1, 1)
    assert table(4, 3) == (0, 0, 1, 2) and table(8, 4) == (0, 0, 1, 1, 2, 2, 3, 3)
    with pytest.raises(ValueError, match="2 devices cannot share 1 replica; choose replicas of at least the number of devices"):
        table(1, 2)


def test_owners_have_nearly_equally_many_bytes() -> None:
    parameters = parameters_of(SHAPE)
    nbytes = Counter[int]()
    found = owners(parameters, 3, 1)
    for tile, owner in found.items():
        nbytes[owner] += tile.nbytes
    assert len(found) == len({*parameters.weights()}) and set(nbytes) == {0, 1, 2}
    assert max(nbytes.values()) - min(nbytes.values()) <= max(tile.nbytes for tile in found)


@pytest.mark.parametrize("nodes", [2, 4])
def test_the_first_tiles_have_owners_on_all_nodes(nodes: int) -> None:
    found = list(owners(parameters_of(SHAPE), 8, nodes).values())
    assert {owner // (8 // nodes) for owner in found[:nodes]} == set(range(nodes))


@pytest.mark.parametrize(("kind", "carriers"), [*STEPS, *(law(*one) for one in OTHERS)])
@pytest.mark.parametrize("on_host", [False, law(True)], ids=["on devices", "on the host"])
def test_no_device_reads_what_another_one_has_changed_before_it_passed(
    kind: str, carriers: tuple[int, ...], on_host: bool
) -> None:
    program, _ = recorded(kind, carriers, on_host=on_host)
    newest: dict[Tile, set[str]] = {}
    assert program.devices == max(carriers) + 1
    for _ in range(2):  # the second run begins with what the first has left
        for entry in program.entries:
            if isinstance(entry, Handover):
                assert entry.source in newest[entry.tile]
                newest[entry.tile].add(entry.device)
                continue
            for tile, how in zip(entry.tiles, entry.access, strict=True):
                may_read = entry.device == HOST or {HOST, entry.device} & newest.get(tile, {HOST})
                assert how == WRITE or may_read, f"{entry}: {tile.name}"
                if how != READ:
                    newest[tile] = {entry.device}
            if isinstance(entry, Passage):
                newest.update((tile, {HOST}) for tile in entry.tiles)
        newest = {tile: where for tile, where in newest.items() if tile.persistent}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_owner_updates_a_tile_and_passes_on_what_the_others_read(precision: str) -> None:
    program, parameters = recorded("step", (0, 0, 1, 1), precision=precision)
    owner = owners(parameters, 2, 1)
    passed = {tile for entry in program.entries if isinstance(entry, Passage) for tile in entry.tiles}
    updates = [operation for operation in program.operations() if operation.kernel.startswith("adamw")]
    assert len(updates) == len(owner) and all(one.device == device_named(owner[one.operands[0]]) for one in updates)
    assert passed == {tile for parameter in parameters.values() for tile in parameter.compute.values()}


@pytest.mark.parametrize("kind", ["step", "step_clipped"])
def test_one_sum_of_each_gradient_goes_from_node_to_node_and_ends_at_its_owner(kind: str) -> None:
    program, _ = recorded(kind, (0, 1, 2, 3))
    updates = [operation for operation in program.operations() if operation.kernel.startswith("adamw")]
    owned = {operation.operands[1]: operation.device for operation in updates}
    adds = [operation for operation in program.operations() if operation.kernel == "add"]
    ends = {operation.operands[1]: operation.device for operation in adds}
    partials = {operation.operands[0] for operation in adds}
    between = Counter[str]()
    for entry in program.entries:
        is_sum = isinstance(entry, Handover) and (entry.tile in partials or entry.tile in owned)
        if is_sum and number_of(entry.source) // 2 != number_of(entry.device) // 2:
            between[entry.tile.name.partition("]")[0]] += 1
    assert owned and all(ends[gradient] == owner for gradient, owner in owned.items())
    # The matrix of the words has two gradients: of the embedding and of the head.
    assert len(between) == len(owned) and all(count == 1 + name.startswith("dwte") for name, count in between.items())


@pytest.mark.parametrize("carriers", [(0, 1, 2, 2, 3, 4, 4, 5), (0, 0, 0, 1, 1, 1, 2, 2), (0, 0, 0, 1)])
def test_the_gradient_of_an_update_on_the_host_ends_on_the_device_of_the_owner(carriers: tuple[int, ...]) -> None:
    program, parameters = recorded("step", carriers, on_host=True)
    owner = owners(parameters, max(carriers) + 1, 1)
    ends = {operation.operands[1]: operation.device for operation in program.operations() if operation.kernel == "add"}
    updates = [operation for operation in program.operations() if operation.kernel.startswith("adamw")]
    assert len(updates) == len(owner) and all(one.device == HOST for one in updates)
    assert all(ends[one.operands[1]] == device_named(owner[one.operands[0]]) for one in updates)


def test_partials_are_added_up_on_the_nearest_device_to_the_owner_that_has_one() -> None:
    assert nearest({2, 3}, 3) == 3 and nearest({0, 1}, 3) == 1 and nearest({1, 3}, 2) == 3
    assert nearest({4, 5}, 2) == 4 and nearest({0, 2}, 4) == 0


def test_rows_stay_on_the_device_of_their_replica() -> None:
    program, _ = recorded("step", (0, 0, 1, 1))
    inputs = {program.inputs[f"tokens[{row}]"]: row for row in range(len(program.inputs)) if f"tokens[{row}]" in program.inputs}
    where = {row: {entry.device for entry in program.entries if not isinstance(entry, Mark) and tile in entry.tiles}
             for tile, row in inputs.items()}  # fmt: skip
    half = len(where) // 2
    assert where == {row: {device_named(int(row >= half))} for row in where}


def test_rows_that_reach_over_two_tiles_of_positions_begin_where_their_tokens_are() -> None:
    program, _ = recorded("step", TABLES[2], shape=make_shape(20, 2, 35, 24, tile=12, batch=8, length=17, n_layer=1))
    begun = Counter[Tile]()
    for operation in program.operations():
        if operation.kernel == "embed_positions":
            begun[operation.operands[-1]] += 1
    assert max(begun.values()) == 2
    for tile in begun:
        assert len({operation.device for operation in program.operations() if tile in operation.operands}) == 1


def test_one_device_carries_the_program_of_replicas_unchanged() -> None:
    alone, _ = recorded("step", (0, 0, 0, 0))
    assert alone.devices == 1 and not any(isinstance(entry, Passage | Handover) for entry in alone.entries)


def test_groups_of_rows_are_divided_like_replicas_and_are_never_too_few() -> None:
    assert forward_table(4, 3) == table(4, 3) and forward_table(5, 2) == (0, 0, 0, 1, 1)
    assert forward_table(2, 4) == (0, 1) and forward_table(1, 8) == (0,)


@pytest.mark.parametrize("kind", ["loss", "logits"])
@pytest.mark.parametrize("shape", [SHAPE, make_shape(20, 2, 35, 24, tile=12, batch=8, length=17, n_layer=1)])
def test_devices_of_a_forward_pass_share_nothing_but_weights_that_stay_as_they_are(kind: str, shape: Shape) -> None:
    parameters = parameters_of(shape)
    rows = parameters.tiling.rows(8, shape.length)
    carriers = forward_table(len(rows.groups), 3)
    program = record(kind, parameters, rows, carriers=carriers)
    places: dict[Tile, set[str]] = {}
    for entry in program.entries:
        assert not isinstance(entry, Passage)
        for tile in entry.tiles:
            places.setdefault(tile, set()).add(entry.device)
    assert {tile for tile, found in places.items() if len(found) > 1} == set(parameters.weights())
    for group, device in zip(rows.groups, carriers, strict=True):
        assert {*map(tuple, (places[program.inputs[f"tokens[{row.index}]"]] for row in group))} == {(device_named(device),)}


def test_a_forward_pass_over_several_devices_reports_its_losses_in_the_order_of_one() -> None:
    parameters = parameters_of(SHAPE)
    rows = parameters.tiling.rows(8, SHAPE.length)
    alone, spread = (record("loss", parameters, rows, carriers=forward_table(len(rows.groups), count)) for count in (1, 3))
    assert alone.devices == 1 and spread.devices == 3 and spread.numbers == alone.numbers
