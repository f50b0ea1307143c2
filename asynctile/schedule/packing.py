"""A packing: where every tile stands in a tier, byte by byte, in a step that repeats; what moves before each entry, and when.

`pack` works it out, pure: a function of the program, the bytes and how far ahead to bring tiles in. A walk decides who stands,
when and where (walk.py). A schedule follows from the packing without another decision (decide.py).

The way not taken: slots of a few sizes. Any tile takes any free slot, and what a slot is larger than its tile is lost: a step
of which 99% fits moved as many bytes as one of which half does. Nor intervals packed offline with no tile moved: those that
want all of a cap need 1.14 of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from asynctile.program.operation import HOST
from asynctile.program.program import Program
from asynctile.schedule.packer import Act
from asynctile.schedule.uses import Uses, is_dead, tiles_of
from asynctile.schedule.walk import NoRoom, Stay, Walk, inputs_alone
from asynctile.storage.tile import Tile

#: Of the cap, for each unit of prefetch depth, what may be brought in early, and as much that is kept free.
SHARES = (0.01, 0.025, 0.04, 0.06)
#: The most bytes that may move, over those that have to by bytes alone, so that a step is faster.
MORE = 1.15
#: Runs by bytes alone, after which whoever stands is taken to stand between two runs for good.
RUNS = 2
_ACTS = tuple(Act)


class Planned(NamedTuple):
    """One move. offset: where the tile will stand, in bytes; of LEAVE, where it stood."""

    act: Act
    tile: Tile
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Of a step of `program` in a tier of `cap` bytes, at multiples of `alignment`.

    start: the offset of each tile that stands when a step begins, and again when it ends. changed: of these, those whose bytes
    below are older then. moves: [i] are carried out in order before entry i, the last behind the last entry. births: by entry,
    its operands that are overwritten whole and stand nowhere yet, with their offsets. passing: inputs that the host writes
    below before a run, which are gone with their last use.
    """

    program: Program
    cap: int
    alignment: int
    start: Mapping[Tile, int]
    changed: frozenset[Tile]
    moves: tuple[tuple[Planned, ...], ...]
    births: Mapping[int, tuple[tuple[Tile, int], ...]]
    passing: frozenset[Tile] = frozenset()

    def nbytes(self, act: Act) -> int:
        """Of all tiles that do so in a step."""
        return sum(planned.tile.nbytes for planned in self.planned() if planned.act is act)

    def planned(self) -> Iterator[Planned]:
        """All moves, in order."""
        for moves in self.moves:
            yield from moves


def pack(uses: Uses, cap: int, depth: int) -> Packing | None:
    """The best packing found for a tier of `cap` bytes; None if a step does not fit so.

    depth: of prefetch. To bring tiles in early, and to let others leave early, takes room, for which more bytes
    have to move: the fastest of those that move about the fewest bytes is taken.
    """
    cap = cap // uses.alignment * uses.alignment
    found = _best(_Packer(uses, cap), depth)
    return None if found is None else _packing(uses, cap, found)


def resident(program: Program, alignment: int) -> Packing:
    """What moves in RAM that holds everything, where it is the device: nothing. Offsets mean nothing."""
    standing = frozenset((*program.standing, *program.inputs.values()))
    alive, births = set(standing), dict[int, tuple[tuple[Tile, int], ...]]()
    for index, entry in enumerate(program.entries):
        born = dict.fromkeys(tile for tile in entry.tiles if tile not in alive)
        if born:
            births[index] = tuple((tile, 0) for tile in born)
            alive.update(born)
        ranks = zip(entry.tiles, program.next_uses[index], strict=True)
        alive.difference_update(tile for tile, rank in ranks if is_dead(tile, rank))
    return Packing(
        program=program, cap=0, alignment=alignment, start=dict.fromkeys(tiles_of(program)[: len(standing)], 0),
        changed=standing, moves=((),) * (len(program) + 1), births=births,
    )  # fmt: skip


def unpacked(uses: Uses) -> Packing:
    """What moves in a device over RAM that holds everything: each tile comes once, and leaves only for the host. Offsets mean
    nothing.
    """
    largest, count = int(uses.sizes.max(initial=0)), len(uses.tiles)
    cap = int(uses.sizes.sum()) + (count + 1) * largest  # so that there is a hole for each, wherever the others stand
    found = _Packer(uses, cap).packed(cap, 0)
    assert found is not None, "everything fits"
    # What the host never wants counts as changed: then a step and a validation that take turns begin with the same.
    in_ram = {tile for entry in uses.program.entries if entry.device == HOST for tile in entry.tiles}
    changed = {tile for tile in found.home if uses.tiles[tile] not in in_ram}
    return _packing(uses, cap, found._replace(changed=found.changed | changed))


def _packing(uses: Uses, cap: int, found: _Packed) -> Packing:
    tiles, moves, births = uses.tiles, [[] for _ in range(len(uses) + 1)], {}  # type: ignore[var-annotated]
    for index, act, tile, offset in found.walk.moves.tolist():
        if act == Act.BIRTH:
            births.setdefault(index, []).append((tiles[tile], offset))
        elif act != Act.NOTHING:
            moves[index].append(Planned(_ACTS[act], tiles[tile], offset))
    return Packing(
        program=uses.program, cap=cap, alignment=uses.alignment,
        start={tiles[tile]: offset for tile, offset in found.home.items()},
        changed=frozenset(tiles[tile] for tile in found.changed),
        moves=tuple(map(tuple, moves)), births={index: tuple(born) for index, born in births.items()},
        passing=frozenset(tiles[tile] for tile in uses.passing),
    )  # fmt: skip


class _Packed(NamedTuple):
    """A run with places. home: who stands between two runs, and where. changed: of these, those newer than below."""

    walk: Walk
    home: dict[int, int]
    changed: set[int]


class _Packer(NamedTuple):
    """What walks go by."""

    uses: Uses
    cap: int

    def settled(self, ahead: int, slack: int) -> tuple[Walk, dict[int, Stay]]:
        """A run by bytes alone behind another one, and the tiles that stand when it ends. NoRoom if an entry does not fit."""
        standing = inputs_alone(self.uses, self.cap)
        for _ in range(RUNS):
            walk = Walk(self.uses, self.cap, ahead, slack, standing)
            standing = walk.standing()
        return walk, standing

    def packed(self, ahead: int, slack: int) -> _Packed | None:
        """One with places, through a step and back to its beginning; None if there is no way. ahead, slack: as in `Walk`."""
        try:
            _, standing = self.settled(ahead, slack)
            home = _homes(self.uses, self.cap, standing)
            walk = Walk(self.uses, self.cap, ahead, slack, standing, kept=standing, home=home)
        except NoRoom:
            return None
        changed = {tile for tile in home if walk.tiles["dirty"][tile]}
        if not self.uses.has_link:
            changed.update(self.uses.inputs)  # the host writes them where they stand before the next run
            changed.update(tile for tile in self.uses.passing if tile in home)
        return _Packed(walk, home, changed)


def _best(packer: _Packer, depth: int) -> _Packed | None:
    """The fastest of those that move at most MORE than has to move by bytes alone, else that which moves least. More bytes to
    spare make more of them move: once there are too many the next need not be tried.
    """
    try:
        least, _ = packer.settled(0, 0)
    except NoRoom:
        return None
    found: list[_Packed] = []
    for spare in dict.fromkeys(int(share * depth * packer.cap) for share in SHARES):
        one = packer.packed(spare, spare)
        if one is not None:
            if found and one.walk.moved > MORE * least.moved:
                break
            found.append(one)
    within = [one for one in found if one.walk.moved <= MORE * least.moved]
    if within:
        return min(within, key=lambda one: one.walk.seconds)
    bare = packer.packed(0, 0)
    return min(found if bare is None else [*found, bare], key=lambda one: one.walk.moved, default=None)


def _homes(uses: Uses, cap: int, standing: Mapping[int, Stay]) -> dict[int, int]:
    """Where each of `standing` stands between two runs: from the top down in the order in which they came.

    Who came last is used first and leaves first, for a step ends with what it began with: so room grows from below.
    """
    homes, offset, sizes = {}, cap, uses.sizes.tolist()
    for tile in sorted(standing, key=lambda tile: (standing[tile].since, tile)):
        offset -= sizes[tile]
        homes[tile] = offset
    return homes
