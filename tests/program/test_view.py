"""The view of a program that one device has: its own entries, and what happens elsewhere to its tiles."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from asynctile.program.operation import HOST, READ, UPDATE, WRITE, Operation, device_named
from asynctile.program.program import Fetch, Mark, Program
from asynctile.program.spread import spread
from asynctile.program.view import View, views_of
from asynctile.storage.tile import Tile
from tests.by_hand import standing
from tests.schedule.made import program_by


def told(view: View) -> list[tuple[int, str, list[str], str]]:
    """Return the position of each entry, where it runs, its tiles and their accesses."""
    entries = zip(view.positions, view.program.entries, strict=True)
    return [(at, entry.device, [tile.name for tile in entry.tiles], entry.access) for at, entry in entries]


def program_of(*entries: Operation, name: str = "by hand") -> Program:
    program = Program(name)
    for entry in entries:
        program.add(entry)
    return program.finish()


def operation(device: str, tiles: Sequence[object], access: str) -> Operation:
    return Operation("none", tuple(tiles), access, device=device)  # type: ignore[arg-type]


def test_the_view_of_an_only_device_is_the_program_itself() -> None:
    (a,) = standing("a")
    program = program_of(operation("device:0", [a], UPDATE))
    (view,) = views_of(program)
    assert view.program is program and list(view.positions) == [0]


def test_a_device_sees_its_own_entries_and_what_passes_between_devices() -> None:
    a, b, c = standing("a", "b", "c")
    program = program_of(
        operation("device:0", [a], UPDATE), operation("device:0", [b], UPDATE), operation("device:1", [a, c], READ + WRITE))
    program = spread(program, [0, 0, 1])
    first, second = views_of(program)
    assert told(first) == [(0, "device:0", ["a"], "u"), (1, HOST, ["a"], "r"), (2, "device:0", ["b"], "u")]
    assert told(second) == [(0, HOST, ["a"], "w"), (3, "device:0", ["a", "c"], "rw")]
    assert first.shared == second.shared == {a}


def test_a_device_sees_work_of_the_host_on_its_own_tiles_alone() -> None:
    a, b, c = standing("a", "b", "c")
    program = program_of(
        operation("device:0", [a], READ), operation("device:0", [b], READ), operation(HOST, [a, b, c], WRITE + READ + UPDATE))
    first, second = views_of(spread(program, [0, 1, 0]))
    assert told(first) == [(0, "device:0", ["a"], "r"), (2, HOST, ["a"], "w")]
    assert told(second) == [(1, "device:0", ["b"], "r"), (2, HOST, ["b"], "r")]


def test_a_handover_is_a_read_of_one_device_and_a_write_of_the_other() -> None:
    t = Tile("t", (2,))
    program = program_of(operation("device:0", [t], WRITE), operation("device:1", [t], READ), operation("device:2", [t], READ))
    first, second, third = views_of(spread(program, [0, 1, 2]))
    assert told(first) == [(0, "device:0", ["t"], "w"), (1, "device:0", ["t"], "r"), (2, "device:0", ["t"], "r")]
    assert told(second) == [(1, "device:0", ["t"], "w"), (3, "device:0", ["t"], "r")]
    assert told(third) == [(2, "device:0", ["t"], "w"), (4, "device:0", ["t"], "r")]


def test_the_host_reads_a_temporary_from_the_device_that_wrote_it_last() -> None:
    t = Tile("t", (2,))
    program = program_of(
        operation("device:0", [t], WRITE), operation("device:1", [t], UPDATE), operation(HOST, [t], READ),
        operation(HOST, [t], UPDATE), operation("device:0", [t], READ))  # fmt: skip
    first, second = views_of(spread(program, [0, 1, 0, 0, 0]))
    assert told(first)[2:] == [(4, HOST, ["t"], "w"), (5, "device:0", ["t"], "r")]
    assert told(second)[2:] == [(3, HOST, ["t"], "r"), (4, HOST, ["t"], "u")]


@given(seed=st.integers(0, 1 << 32))
def test_views_share_out_all_operations_and_fetches_in_order(seed: int) -> None:
    chance = random.Random(seed)
    program = program_by(chance)
    program = spread(program, [chance.randrange(3) for _ in program.entries])
    views = views_of(program)
    for number, view in enumerate(views):
        own = [entry for entry in view.program.entries if isinstance(entry, Operation | Fetch)]
        meant = [entry for entry in program.entries
                 if isinstance(entry, Operation | Fetch) and entry.device == device_named(number)]  # fmt: skip
        if len(views) > 1:
            assert [(entry.tiles, entry.access) for entry in own] == [(entry.tiles, entry.access) for entry in meant]
        assert list(view.positions) == sorted(view.positions)
        assert [entry.name for entry in view.program.entries if isinstance(entry, Mark)] == list(program.marks)
