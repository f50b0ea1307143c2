"""A program over several devices: what one device writes and another one uses passes through RAM, and nothing else does."""

from __future__ import annotations

import numpy as np
import pytest

from asynctile.program.operation import HOST, READ, UPDATE, WRITE, Operation
from asynctile.program.program import Fetch, Handover, Passage, Program
from asynctile.program.spread import joined, spread
from asynctile.storage.tile import Tile
from tests.by_hand import SHAPE, standing
from tests.program.test_parts import alone, drawn


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


def handovers(program: Program) -> list[tuple[int, str, str, str]]:
    """Return the position of each handover, its tile, and from which device to which."""
    return [(at, entry.tile.name, entry.source, entry.device)
            for at, entry in enumerate(program.entries) if isinstance(entry, Handover)]  # fmt: skip


def test_on_one_device_nothing_passes() -> None:
    (a,) = standing("a")
    program = spread(recorded((a, UPDATE), (a, READ)), [0, 0])
    assert program.devices == 1 and passages(program) == []


def test_a_temporary_is_handed_over_behind_the_last_write_before_another_device_reads_it() -> None:
    program = Program("by hand")
    t = program.tile("t", SHAPE)
    program = spread(recorded((t, WRITE), (t, UPDATE), (t, UPDATE), (t, READ), program=program), [1, 1, 1, 0])
    assert program.devices == 2 and handovers(program) == [(3, "t", "device:1", "device:0")] and not passages(program)


def test_a_temporary_goes_to_each_device_that_reads_it_before_it_is_written_again() -> None:
    program = Program("by hand")
    t = program.tile("t", SHAPE)
    uses = (t, WRITE), (t, READ), (t, READ), (t, READ), (t, UPDATE), (t, READ), (t, WRITE), (t, READ)
    program = spread(recorded(*uses, program=program), [0, 1, 0, 1, 2, 1, 1, 1])
    assert handovers(program) == [
        (1, "t", "device:0", "device:1"), (2, "t", "device:0", "device:2"), (7, "t", "device:2", "device:1"),
    ]  # fmt: skip


def test_a_temporary_that_only_the_host_reads_elsewhere_is_not_handed_over() -> None:
    program = Program("by hand")
    t = program.tile("t", SHAPE)
    program.add(Operation("none", (t,), WRITE))
    program.add(Operation("none", (t,), READ, device=HOST))
    assert handovers(spread(program.finish(), [1, 0])) == []


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
    assert [type(entry).__name__ for entry in found.entries] == ["Operation", "Handover", "Mark", "Fetch"]
    assert found.marks == {"here": 2} and found.rewritten == {"here": (x,)} and found.inputs == {"x": x}
    assert found.sections == [(0, ("forward", "first")), (3, ("forward", "second"))] and found.numbers == ["loss"]
    assert found.fetches == [found.entries[3]] and isinstance(found.entries[3], Fetch) and found.entries[3].device == "device:0"


@pytest.mark.parametrize("seed", range(10))
def test_joined_again_one_device_does_the_same_and_nothing_passes(seed: int) -> None:
    program = drawn(seed, 3)
    found = joined(program)
    assert alone(found) == alone(program) and found.devices == 1 and found.marks.keys() == program.marks.keys()
    assert not any(isinstance(entry, Handover | Passage) for entry in found.entries)
    assert [entry.key for entry in found.fetches] == [entry.key for entry in program.fetches]
