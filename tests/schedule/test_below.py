"""The uses of RAM by the moves of a device: in their order, and dead exactly while the newest bytes are above."""

from __future__ import annotations

import random
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from asynctile.program.operation import HOST, READ, UPDATE, WRITE
from asynctile.program.program import Mark
from asynctile.schedule.below import below
from asynctile.schedule.decide import plan_top
from asynctile.schedule.packing import Act, Packing
from asynctile.schedule.uses import Uses, hows_of
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.tile import NEVER, Tile
from tests.laws import examples
from tests.schedule.made import program_by, used
from tests.schedule.paces import OVER_FILE, OVER_LINK
from tests.schedule.packings import alone
from tests.schedule.spaces import SIZES, space_by

#: A use of RAM: what happens, and to which tile, by its access.
Told = tuple[str, Tile, str]


def uses_below(packing: Packing, *, inputs_stand: bool = True) -> Uses:
    return below(packing.program, [alone(packing)], PAGE, OVER_LINK, OVER_FILE, inputs_stand=inputs_stand)


def drawn(seed: int) -> Packing | None:
    chance = random.Random(seed)
    program = program_by(chance, sizes=SIZES, entries=chance.choice((6, 30, 60)))
    return plan_top(program, space_by(chance, program, chance.choice(("device", "device+"))))


def told(packing: Packing) -> Iterator[list[Told]]:
    """Yield, by use of RAM, what a device does there, derived from its moves alone. "changed", "made": it is changed above."""
    program, changed = packing.program, set(packing.changed)
    for index, moves in enumerate(packing.moves):
        for act, tile, _ in moves:
            if act is Act.LOAD:
                yield [("up", tile, READ)]
            elif act is Act.LEAVE and tile in changed:
                yield [("down", tile, WRITE)]
                changed.discard(tile)
        if index == len(program):
            return
        entry = program.entries[index]
        if isinstance(entry, Mark):
            if program.rewritten[entry.name]:
                yield [("given", tile, WRITE) for tile in program.rewritten[entry.name]]
            changed.difference_update(program.rewritten[entry.name])
            continue
        hows = {tile: (READ, WRITE, UPDATE)[how] for tile, how in hows_of(entry).items()}
        if entry.device == HOST:
            yield [("here", tile, how) for tile, how in hows.items()]
            changed.difference_update(tile for tile, how in hows.items() if how != READ)
        else:
            born = dict(packing.births.get(index, ()))
            written = [tile for tile, how in hows.items() if how != READ]
            for tile in written:
                if tile.persistent and tile not in changed:
                    yield [("made" if tile in born else "changed", tile, WRITE)]
            changed.update(written)
        for tile, again in zip(entry.tiles, program.device_uses[index], strict=True):
            if again == NEVER and not tile.persistent:
                changed.discard(tile)


@examples(50)
@given(seed=st.integers(0, 1 << 32))
def test_ram_is_used_in_the_order_of_the_moves(seed: int) -> None:
    packing = drawn(seed)
    if packing is None:
        return
    uses = uses_below(packing)
    expected = [[(uses.tiles.index(tile), how) for _, tile, how in entry] for entry in told(packing)]
    assert [[(use.tile, use.how) for use in entry] for entry in used(uses)] == expected
    assert not uses.has_link and [uses.tiles[one] for one in uses.inputs] == list(packing.program.inputs.values())
    assert uses_below(packing, inputs_stand=False).inputs == []


@examples(50)
@given(seed=st.integers(0, 1 << 32))
def test_a_persistent_tile_is_dead_in_ram_exactly_while_it_is_above_to_be_changed(seed: int) -> None:
    packing = drawn(seed)
    if packing is None:
        return
    uses, entries, inputs = uses_below(packing), list(told(packing)), set(packing.program.inputs.values())
    ways: dict[Tile, list[tuple[int, str]]] = {}
    for index, entry in enumerate(entries):
        for way, tile, _ in entry:
            ways.setdefault(tile, []).append((index, way))
    dying = uses.dying()
    for tile, found in ways.items():
        if not tile.persistent or tile in inputs:
            continue
        for (index, way), (_, then) in zip(found, [*found[1:], found[0]], strict=True):
            is_above = way in ("changed", "made") or (way, then) == ("up", "changed")
            assert (tile in dying[index]) == is_above, f"{tile.name} at {index}, {way}, then {then}"


@examples(50)
@given(seed=st.integers(0, 1 << 32))
def test_temporaries_and_inputs_die_in_ram_with_their_last_need_but_not_when_the_host_writes(seed: int) -> None:
    packing = drawn(seed)
    if packing is None:
        return
    uses, entries, inputs = uses_below(packing), list(told(packing)), set(packing.program.inputs.values())
    for index, (entry, dying) in enumerate(zip(entries, uses.dying(), strict=True)):
        for way, tile, _ in entry:
            if tile.persistent and tile not in inputs:
                continue
            then = next((how for later in entries[index + 1 :] for _, one, how in later if one is tile), WRITE)
            assert (tile in dying) == (then == WRITE and way != "given")


@examples(50)
@given(seed=st.integers(0, 1 << 32))
def test_bytes_are_needed_again_at_their_next_read_in_ram(seed: int) -> None:
    packing = drawn(seed)
    if packing is None:
        return
    inputs = set(packing.program.inputs.values())
    uses, entries = uses_below(packing), list(told(packing))
    for index, entry in enumerate(used(uses)):
        for use in entry:
            tile = uses.tiles[use.tile]
            next_run = entries if tile.persistent and tile not in inputs else []
            later = [
                (at, how)
                for at, entry in enumerate([*entries, *next_run])
                for _, one, how in entry
                if one is tile and at > index
            ]
            at, how = later[0] if later else (NEVER, WRITE)
            assert use.again == (NEVER if how == WRITE else at)
