"""The parts of a program: together, nodes do what the program says, and each finds its tiles where it needs them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from asynctile.program.operation import HOST, READ, UPDATE, WRITE, Operation
from asynctile.program.parts import part_of, parts_of, reporters
from asynctile.program.program import Fetch, Handover, Mark, Passage, Program, Shipment
from asynctile.program.spread import spread
from asynctile.storage.tile import Tile
from tests.by_hand import SHAPE, standing
from tests.laws import law
from tests.schedule.made import program_by

#: Values of tiles by name: which entries made them, out of which values.
Values = dict[Tile, Any]
KINDS = ["operation"] * 12 + ["fetch", "mark"]


def perform(entry: Any, values: Values, seen: dict[Any, Any]) -> None:
    """Perform an operation or a fetch on symbols; note the values that it meets."""
    met = tuple(values[tile] for tile, how in zip(entry.tiles, entry.access, strict=True) if how != WRITE)
    label = entry.params[0] if isinstance(entry, Operation) else entry.key
    seen[label] = met
    written = [tile for tile, how in zip(entry.tiles, entry.access, strict=True) if how != READ]
    values.update((tile, hash((label, number, met))) for number, tile in enumerate(written))


def alone(program: Program, runs: int = 2) -> list[dict[Any, Any]]:
    """Return what each entry of a whole program meets, by run."""
    values: Values = {tile: tile.name for tile in program.standing}
    found = []
    for _ in range(runs):
        found.append({})
        for entry in program.entries:
            if isinstance(entry, Operation | Fetch):
                perform(entry, values, found[-1])
    return found


class Node:
    """One node on its way through its part, on one device; `wire` is what all nodes have sent."""

    def __init__(self, number: int, part: Program, wire: dict[Any, Any], runs: int) -> None:
        self.number, self.part, self.wire = number, part, wire
        self.values: Values = {tile: tile.name for tile in part.standing}
        self.seen: list[dict[Any, Any]] = [{} for _ in range(runs)]
        self.steps = self.walk(runs)

    def walk(self, runs: int) -> Iterator[bool]:
        """Go on entry by entry, yielding whether it went on."""
        for run in range(runs):
            for entry in self.part.entries:
                if isinstance(entry, Shipment) and entry.access == READ:
                    key = self.number, entry.node, run, entry.tile.persistent, entry.index
                    self.wire[key] = entry.tile, self.values[entry.tile]
                elif isinstance(entry, Shipment):
                    while (key := (entry.node, self.number, run, entry.tile.persistent, entry.index)) not in self.wire:
                        yield False
                    tile, self.values[entry.tile] = self.wire.pop(key)
                    assert tile is entry.tile
                elif isinstance(entry, Operation | Fetch):
                    perform(entry, self.values, self.seen[run])
                yield True


def together(program: Program, runs: int = 2) -> list[dict[Any, Any]]:
    """Return what each entry meets when all nodes carry out their parts side by side. All make the same fetches."""
    wire: dict[Any, Any] = {}
    parts = parts_of(program, range(program.devices), 1)
    all_nodes = [Node(number, part, wire, runs) for number, part in enumerate(parts)]
    going = list(all_nodes)
    while going:
        moved = [next(node.steps, None) for node in going]
        assert any(one is not False for one in moved), "all nodes wait for each other"
        going = [node for node, one in zip(going, moved, strict=True) if one is not None]
    assert not wire, "something was sent that nobody has received"
    found, fetched = [], {entry.key for entry in program.fetches}
    for run in range(runs):
        found.append({})
        for node in all_nodes:
            assert found[run].keys() & node.seen[run].keys() == (fetched if found[run] else set())
            assert all(found[run].get(key, node.seen[run][key]) == node.seen[run][key] for key in fetched)
            found[run] |= node.seen[run]
    return found


def drawn(seed: int, nodes: int) -> Program:
    """Return a random program over as many devices as nodes, each of whose operations has a number of its own."""
    chance = random.Random(seed)
    made = program_by(chance, kinds=KINDS)
    labelled = Program("by chance")
    labelled.inputs, labelled.temporaries = made.inputs, made.temporaries
    for number, entry in enumerate(made.entries):
        if isinstance(entry, Mark):
            labelled.mark(entry.name, made.rewritten[entry.name])
        elif isinstance(entry, Operation):
            labelled.add(Operation("none", entry.tiles, entry.access, (number,)))
        else:
            labelled.fetches.append(entry)
            labelled.add(entry)
    return spread(labelled.finish(), [chance.randrange(nodes) for _ in labelled.entries])


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("seed", [*range(20), *(law(seed) for seed in range(20, 200))])
def test_nodes_together_do_what_one_does_alone(nodes: int, seed: int) -> None:
    program = drawn(seed, nodes)
    assert together(program) == alone(program)


@pytest.mark.parametrize("seed", range(10))
def test_both_ends_of_a_way_count_alike_and_in_one_order(seed: int) -> None:
    program = drawn(seed, 3)
    parts = [part_of(program, node, 1) for node in range(program.devices)]
    for source, one in enumerate(parts):
        for target, other in enumerate(parts):
            ships = [entry for entry in one.entries if isinstance(entry, Shipment)]
            there = [entry for entry in other.entries if isinstance(entry, Shipment)]
            sent = [(entry.index, entry.tile) for entry in ships if entry.node == target and entry.access == READ]
            received = [(entry.index, entry.tile) for entry in there if entry.node == source and entry.access == WRITE]
            assert sent == received
            for is_persistent in (False, True):
                indices = [index for index, tile in sent if tile.persistent is is_persistent]
                assert indices == list(range(len(indices)))


@pytest.mark.parametrize("seed", range(10))
def test_parts_that_are_cut_together_are_those_that_are_cut_alone(seed: int) -> None:
    program, wanted = drawn(seed, 6), [0, 2, 1]
    program.section("forward", "end")
    for node, together in zip(wanted, parts_of(program, wanted, 2), strict=True):
        by_itself = part_of(program, node, 2)
        assert names(together) == names(by_itself) and together.temporaries == by_itself.temporaries
        assert [entry.tiles for entry in together.entries] == [entry.tiles for entry in by_itself.entries]
        assert together.sections == by_itself.sections == [(len(together), ("forward", "end"))]
        shipped = [[(entry.node, entry.index) for entry in part.entries if isinstance(entry, Shipment)]
                   for part in (together, by_itself)]  # fmt: skip
        assert shipped[0] == shipped[1]


def handed(*devices: int) -> Program:
    """Return a program in which the first device writes a temporary tile that the others read."""
    program = Program("by hand")
    t = program.tile("t", SHAPE)
    for number in range(len(devices)):
        program.add(Operation("none", (t,), READ if number else WRITE))
    return spread(program.finish(), devices)


def names(part: Program) -> list[str]:
    return [f"{type(entry).__name__} {entry.device} {entry.access}" for entry in part.entries]


def test_devices_of_one_node_hand_over_as_without_nodes() -> None:
    program = handed(0, 1)
    assert names(part_of(program, 0, 2)) == ["Operation device:0 w", "Handover device:1 u", "Operation device:1 r"]
    assert part_of(program, 0, 2).devices == 2


def test_a_temporary_goes_once_to_a_node_however_many_of_its_devices_read_it() -> None:
    program = handed(0, 2, 3, 1)
    assert names(part_of(program, 0, 2)) == [
        "Operation device:0 w", "Shipment host r", "Handover device:1 u", "Operation device:1 r",
    ]  # fmt: skip
    assert names(part_of(program, 1, 2)) == ["Shipment host w", "Operation device:0 r", "Operation device:1 r"]


def test_a_temporary_that_is_written_again_goes_again() -> None:
    program = Program("by hand")
    t = program.tile("t", SHAPE)
    for access in (WRITE, READ, UPDATE, READ):
        program.add(Operation("none", (t,), access))
    found = spread(program.finish(), [0, 1, 0, 1])
    sent = [entry.index for entry in part_of(found, 0, 1).entries if isinstance(entry, Shipment)]
    assert sent == [0, 1]


def test_a_weight_goes_to_each_node_that_uses_it_and_its_moments_go_nowhere() -> None:
    w, m = standing("w", "m")
    program = Program("by hand")
    for tiles, access in (((w,), READ), ((w,), READ), ((w, m), UPDATE * 2), ((m,), READ)):
        program.add(Operation("none", tiles, access))
    found = spread(program.finish(), [1, 2, 0, 0])
    owner = part_of(found, 0, 1)
    assert [(entry.tile, entry.node) for entry in owner.entries if isinstance(entry, Shipment)] == [(w, 1), (w, 2)]
    assert owner.standing == [w, m] or owner.standing == [m, w]
    assert part_of(found, 1, 1).standing == part_of(found, 2, 1).standing == [w]


def test_an_update_on_the_host_is_made_where_its_gradient_is() -> None:
    (w,) = standing("w")
    program = Program("by hand")
    g = program.tile("g", SHAPE)
    program.add(Operation("none", (w,), READ))
    program.add(Operation("none", (g,), WRITE))
    program.add(Operation("none", (w, g), UPDATE + READ, device=HOST))
    found = spread(program.finish(), [0, 1, 0])
    assert names(part_of(found, 0, 1)) == ["Operation device:0 r", "Shipment host w"]
    assert names(part_of(found, 1, 1)) == ["Operation device:0 w", "Operation host ur", "Shipment host r"]


def test_a_result_is_fetched_on_every_node_and_its_tile_goes_once_to_each() -> None:
    program = Program("by hand")
    t = program.tile("t", SHAPE)
    program.add(Operation("none", (t,), WRITE))
    program.add(Operation("none", (t,), READ))
    program.fetch(t, "result", ())
    found = spread(program.finish(), [0, 3, 1])
    assert names(part_of(found, 0, 2)) == [
        "Operation device:0 w", "Shipment host r", "Handover device:1 u", "Fetch device:1 r",
    ]  # fmt: skip
    assert names(part_of(found, 1, 2)) == ["Shipment host w", "Operation device:1 r", "Fetch device:1 r"]
    assert [len(part_of(found, node, 2).fetches) for node in range(2)] == [1, 1]


def test_a_passage_stays_where_several_devices_of_a_node_use_the_tile() -> None:
    w, x = standing("w", "x")
    program = Program("by hand")
    for tiles, access in (((w, x), READ * 2), ((w,), READ), ((w, x), UPDATE * 2)):
        program.add(Operation("none", tiles, access))
    found = spread(program.finish(), [2, 1, 0])
    (passage,) = [entry for entry in part_of(found, 0, 2).entries if isinstance(entry, Passage)]
    assert passage.tiles == (w,)
    assert not [entry for entry in part_of(found, 1, 2).entries if isinstance(entry, Passage | Handover)]


def test_inputs_marks_and_numbers_come_along() -> None:
    program = Program("by hand")
    x, hyper = program.input("x", SHAPE, "float32"), program.input("hyper", SHAPE, "float32")
    program.section("forward", "head")
    program.add(Operation("none", (x,), READ, number=program.number("loss")))
    program.mark("update", rewrites=(hyper,))
    program.add(Operation("none", (hyper,), READ, number=program.number("norm")))
    found = spread(program.finish(), [0, 0, 1, 0])
    zero, one = (part_of(found, node, 1) for node in range(2))
    assert (zero.inputs, one.inputs) == ({"x": x}, {"hyper": hyper})
    assert (zero.rewritten, one.rewritten) == ({"update": ()}, {"update": (hyper,)})
    assert zero.numbers == one.numbers == ["loss", "norm"] and reporters(found, 1) == [0, 1]
    assert zero.sections == one.sections == found.sections
