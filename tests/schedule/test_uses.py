"""A program in numbers: when the bytes of a tile are needed next, on which side of a link, and which tiles are dead."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asynctile.program.operation import HOST, READ, UPDATE, WRITE, Operation
from asynctile.program.program import Program
from asynctile.storage.tile import NEVER, Tile
from tests.laws import examples
from tests.schedule.made import on_host, program_by, rewritten, used, uses_of


def program_of(*entries: tuple[dict[Tile, str], str] | dict[Tile, str], program: Program | None = None) -> Program:
    """Record a program. Each entry: its operands with their access; on the host if it says so."""
    program = Program("by hand") if program is None else program
    for entry in entries:
        operands, device = entry if isinstance(entry, tuple) else (entry, "device:0")
        program.add(Operation("none", tuple(operands), "".join(operands.values()), device=device))
    return program.finish()


def tile(name: str, *, nbytes: int = 1) -> Tile:
    return Tile(name, (nbytes,), np.uint8, persistent=True)


def test_persistent_tiles_are_numbered_first_and_sizes_are_multiples_of_the_alignment() -> None:
    program = Program("by hand")
    scratch, given = program.tile("t", (65,), np.uint8), program.input("x", (64,), np.uint8)
    stands = tile("w", nbytes=1)
    uses = uses_of(program_of({stands: READ, given: READ, scratch: WRITE}, program=program), 64)
    assert set(uses.tiles[:2]) == {stands, given} and uses.tiles[2] is scratch
    assert [uses.sizes[uses.tiles.index(one)] for one in (stands, given, scratch)] == [64, 64, 128]
    assert [uses.tiles[number] for number in uses.inputs] == [given]


def test_bytes_to_be_overwritten_are_never_needed_and_others_also_in_the_next_run() -> None:
    a, b = tile("a"), tile("b")
    uses = uses_of(program_of({a: READ, b: WRITE}, {b: READ}, {a: UPDATE}))
    assert [[use.again for use in entry] for entry in used(uses)] == [[2, 1], [NEVER], [3]]
    assert not any(use.dies for entry in used(uses) for use in entry)


def test_a_temporary_dies_with_its_last_use_before_it_is_written_again() -> None:
    program = Program("by hand")
    t = program.tile("t", (1,), np.uint8)
    uses = uses_of(program_of({t: WRITE}, {t: READ}, {t: WRITE}, {t: UPDATE}, program=program))
    assert [use.dies for (use,) in used(uses)] == [False, True, False, True]


def test_over_a_link_bytes_that_the_host_changes_next_are_not_needed_and_without_one_they_are() -> None:
    a = tile("a")
    program = program_of({a: READ}, ({a: READ}, HOST), {a: READ}, ({a: UPDATE}, HOST))
    over = uses_of(program)
    assert on_host(over) == {1, 3}
    assert [entry[0].again for entry in used(over)] == [2, 2, NEVER, 4]
    within = uses_of(program, has_link=False)
    assert on_host(within) == set()
    assert [entry[0].again for entry in used(within)] == [1, 2, 3, 4]


def test_without_a_link_a_mark_writes_the_tiles_that_the_host_changes_there() -> None:
    program = Program("by hand")
    x, y = program.input("x", (1,), np.uint8), program.input("y", (1,), np.uint8)
    program.add(Operation("none", (x, y), "rr"))
    program.mark("m", [x, y])
    program_of({x: READ}, program=program)
    over, within = (uses_of(program, has_link=has_link) for has_link in (True, False))
    assert rewritten(over) == {1: over.inputs} and used(over)[1] == []
    assert rewritten(within) == {} and [use.tile for use in used(within)[1]] == within.inputs
    assert [(use.how, use.again) for use in used(within)[1]] == [(WRITE, 2), (WRITE, NEVER)]


@examples(15)
@given(st.randoms(use_true_random=False), st.booleans())
def test_every_operand_is_used_once_and_changed_if_it_is_changed_under_any_name(chance: random.Random, has_link: bool) -> None:
    program = program_by(chance)
    uses = uses_of(program, has_link=has_link)
    for index, (entry, found) in enumerate(zip(program.entries, used(uses), strict=True)):
        named = [(tile, how) for tile, how in zip(entry.tiles, entry.access, strict=True)]
        if not named:
            continue
        assert [uses.tiles[use.tile] for use in found] == list(dict.fromkeys(tile for tile, _ in named))
        for use in found:
            access = {how for tile, how in named if tile is uses.tiles[use.tile]}
            assert use.how == (access.pop() if len(access) == 1 else UPDATE)
            assert use.again == NEVER or index < use.again <= index + len(uses)
