"""Work that waits for other devices comes later, beside the next part of a step, and conflicting entries keep their order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from asynctile.program.lag import lagging
from asynctile.program.operation import HOST, READ, UPDATE, WRITE, Operation
from asynctile.program.program import Entry, Program
from tests.by_hand import SHAPE, standing
from tests.laws import examples
from tests.schedule.made import program_by
from tests.schedule.spaces import SIZES


def conflict(one: Entry, other: Entry) -> bool:
    """Return whether one entry writes a tile of the other."""
    written = [{tile for tile, how in zip(entry.tiles, entry.access, strict=True) if how != READ} for entry in (one, other)]
    return bool(written[0] & set(other.tiles) or written[1] & set(one.tiles))


def lagged(program: Program, devices: Sequence[int], begins: Sequence[int]) -> list[int]:
    """Return the positions of all entries in their new order."""
    return list(chain.from_iterable(lagging(program, devices, begins)))


@examples(40)
@given(seed=st.integers(0, 1 << 30))
def test_entries_keep_their_order_where_one_writes_a_tile_of_the_other(seed: int) -> None:
    chance = random.Random(f"lag {seed}")
    program = program_by(chance, sizes=SIZES, entries=chance.choice((6, 30, 60)))
    devices = [chance.randrange(3) for _ in program.entries]
    begins = sorted(chance.sample(range(len(program)), min(4, len(program))))
    order = lagged(program, devices, begins)
    place = {position: index for index, position in enumerate(order)}
    assert sorted(order) == list(range(len(program)))
    for one, other in combinations(range(len(program)), 2):
        if conflict(program.entries[one], program.entries[other]):
            assert place[one] < place[other]


def two_parts(**rewritten: bool) -> tuple[Program, list[int]]:
    """Return a program of two parts on two devices; in the first, device 0 adds what device 1 wrote and updates a weight.

    rewritten: for each mark between the parts, whether the host puts a new value there.
    """
    program, (w,) = Program("by hand"), standing("w")
    a, b, *more = (program.tile(name, SHAPE) for name in "abcdef")
    x = program.input("x", SHAPE, w.dtype)
    devices = [0, 1, 0, 0]
    for tiles, how in (((a,), WRITE), ((b,), WRITE), ((b, a), READ + UPDATE), ((a, w), READ + UPDATE)):
        program.add(Operation("none", tiles, how))
    for name, has_new_value in rewritten.items():
        program.mark(name, (x,) if has_new_value else ())
        devices.append(0)
    for tile in more:
        program.add(Operation("none", (tile,), WRITE))
    return program.finish(), [*devices, 0, 1, 0, 1]


def test_a_sum_over_devices_and_the_update_come_evenly_among_the_devices_next_part() -> None:
    program, devices = two_parts()
    assert lagged(program, devices, [4]) == [0, 1, 4, 2, 5, 6, 3, 7]


def test_the_sums_of_the_last_part_come_at_its_end() -> None:
    program, devices = two_parts()
    assert lagged(program, devices, []) == [0, 1, 4, 5, 6, 7, 2, 3]


def test_sums_come_before_a_mark_only_if_the_host_puts_a_new_value_there() -> None:
    program, devices = two_parts(update=False)
    assert lagged(program, devices, [5]) == [0, 1, 4, 5, 2, 6, 7, 3, 8]
    program, devices = two_parts(update=True)
    assert lagged(program, devices, [5]) == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_work_of_the_host_lags_behind_the_sums_that_it_needs() -> None:
    program, (w,) = Program("by hand"), standing("w")
    a, b, c = (program.tile(name, SHAPE) for name in "abc")
    for tiles, how in (((a,), WRITE), ((b,), WRITE), ((b, a), READ + UPDATE)):
        program.add(Operation("none", tiles, how))
    program.add(Operation("none", (w, a), UPDATE + READ, device=HOST))
    program.add(Operation("none", (c,), WRITE))
    assert lagged(program.finish(), [0, 1, 0, 0, 1], [4]) == [0, 1, 4, 2, 3]


def test_on_one_device_nothing_lags() -> None:
    program, devices = two_parts(update=True)
    assert lagged(program, [0] * len(devices), [5]) == list(range(len(program)))
