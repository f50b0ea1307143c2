"""A program over several devices: what one device writes and another one uses passes through RAM, and nothing else does."""

from __future__ import annotations

import numpy as np

from asynctile.program.operation import HOST, READ, UPDATE, WRITE, Operation
from asynctile.program.program import Fetch, Passage, Program
from asynctile.program.spread import spread
from asynctile.storage.tile import Tile
from tests.by_hand import SHAPE, standing


def recorded(*entries: tuple[Tile, str], program: Program | None = None) -> Program:
    """Record entries on one tile each."""
    program = program or Program("by hand")
    for tile, access in entries:
        program.add(Operation("none", (tile,), access))
    return program.finish()


def passages(program: Program) -> list[tuple[int, str, list[str]]]:
    """Return the position of the entry before each passage, its device and its tiles."""
    return [(at - 1, entry.device, [tile.name for tile in entry.tiles])
            for at, entry in enumerate(program.entries) if isinstance(entry, Passage)]  # fmt: skip


def test_on_one_device_nothing_passes() -> None:
    (a,) = standing("a")
    program = spread(recorded((a, UPDATE), (a, READ)), [0, 0])
    assert program.devices == 1 and passages(program) == []


def test_a_tile_passes_behind_the_last_write_before_another_device_reads_it() -> None:
    program = Program("by hand")
    t = program.tile("t", SHAPE)
    program = spread(recorded((t, WRITE), (t, UPDATE), (t, UPDATE), (t, READ), program=program), [1, 1, 1, 0])
    assert program.devices == 2 and passages(program) == [(2, "device:1", ["t"])]


def test_a_weight_passes_to_those_who_read_it_in_the_next_run() -> None:
    w, m = standing("w", "m")
    program = spread(recorded((w, READ), (w, READ), (w, UPDATE), (m, UPDATE)), [0, 1, 1, 1])
    assert passages(program) == [(2, "device:1", ["w"])]


def test_a_tile_that_only_one_device_and_the_host_use_does_not_pass() -> None:
    (a,) = standing("a")
    program = Program("by hand")
    program.add(Operation("none", (a,), UPDATE))
    program.add(Operation("none", (a,), UPDATE, device=HOST))
    assert passages(spread(program.finish(), [1, 0])) == []


def test_marks_inputs_results_and_sections_come_along() -> None:
    program = Program("by hand")
    x = program.input("x", (2,), np.float32)
    t = program.tile("t", SHAPE)
    program.section("forward", "first")
    program.add(Operation("none", (x, t), READ + WRITE, number=program.number("loss")))
    program.mark("here", (x,))
    program.section("forward", "second")
    program.fetch(t, "out", ())
    found = spread(program.finish(), [1, 0, 0])
    assert [type(entry).__name__ for entry in found.entries] == ["Operation", "Passage", "Mark", "Fetch"]
    assert found.marks == {"here": 2} and found.rewritten == {"here": (x,)} and found.inputs == {"x": x}
    assert found.sections == [(0, ("forward", "first")), (3, ("forward", "second"))] and found.numbers == ["loss"]
    assert found.fetches == [found.entries[3]] and isinstance(found.entries[3], Fetch) and found.entries[3].device == "device:0"
