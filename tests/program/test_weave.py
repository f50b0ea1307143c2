"""Devices that work at the same time have their entries side by side, and conflicting entries keep their order."""

from __future__ import annotations

import random
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from asynctile.program.operation import HOST, READ, UPDATE, WRITE, Operation
from asynctile.program.program import Mark, Program
from asynctile.program.weave import woven
from tests.by_hand import SHAPE, standing
from tests.laws import examples
from tests.program.test_lag import conflict
from tests.schedule.made import program_by
from tests.schedule.spaces import SIZES


def order(program: Program, devices: list[int]) -> list[int]:
    return list(woven(program, devices, range(len(program))))


def writes(count: int) -> Program:
    program = Program("by hand")
    for number in range(count):
        program.add(Operation("none", (program.tile(f"t{number}", SHAPE),), WRITE))
    return program.finish()


@examples(25)
@given(seed=st.integers(0, 1 << 30))
def test_entries_keep_their_order_on_a_device_and_where_they_conflict(seed: int) -> None:
    chance = random.Random(f"weave {seed}")
    program = program_by(chance, sizes=SIZES, entries=chance.choice((6, 30, 60)))
    devices = [chance.randrange(3) for _ in program.entries]
    place = {position: index for index, position in enumerate(order(program, devices))}
    assert sorted(place) == list(range(len(program)))
    for one, other in combinations(range(len(program)), 2):
        entries = program.entries[one], program.entries[other]
        on_one = devices[one] == devices[other] and HOST not in (entry.device for entry in entries)
        if on_one or conflict(*entries) or any(isinstance(entry, Mark) for entry in entries):
            assert place[one] < place[other]


def test_devices_take_turns_and_take_turns_in_going_first() -> None:
    assert order(writes(6), [0, 0, 0, 1, 1, 1]) == [0, 3, 4, 1, 2, 5]


def test_a_device_with_more_to_do_does_more_in_the_same_time() -> None:
    found = order(writes(9), [0, 0, 0, 0, 0, 0, 1, 1, 1])
    assert [position // 6 for position in found] == [0, 0, 1, 1, 0, 0, 0, 0, 1]


def test_work_of_the_host_stays_behind_the_entry_before_it() -> None:
    program, (w,) = Program("by hand"), standing("w")
    for number in range(4):
        program.add(Operation("none", (program.tile(f"t{number}", SHAPE),), WRITE))
    program.add(Operation("none", (w,), UPDATE, device=HOST))
    assert order(program.finish(), [0, 0, 1, 1, 0]) == [0, 2, 3, 4, 1]


def test_a_device_that_waits_for_another_one_lets_the_others_go_on() -> None:
    program = Program("by hand")
    t, *others = (program.tile(name, SHAPE) for name in "tabc")
    for tile in others:
        program.add(Operation("none", (tile,), WRITE))
    program.add(Operation("none", (t,), WRITE))
    program.add(Operation("none", (t,), READ))
    assert order(program.finish(), [0, 0, 0, 0, 1]) == [0, 1, 2, 3, 4]
