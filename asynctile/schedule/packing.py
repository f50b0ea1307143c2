"""A packing: where every tile stands in a tier, byte by byte, in a step that repeats, and what moves before each entry.

`pack` works it out, as a pure function of the program, the cap and the prefetch depth. A walk decides which tiles stand, when
and where (walk.py). The schedule follows from the packing without further decisions (decide.py).

Two ways not taken:
- Slots of a few sizes. Any tile takes any free slot, but the difference in size is lost: a step of which 99% fits moved as many
  bytes as one of which half fits.
- Intervals packed offline, without moving tiles: intervals that need all of a cap take 1.14 of it.
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

#: Lead times that are tried, as fractions of the cap per unit of prefetch depth: so many bytes may be loaded early, and as many
#: are kept free.
SHARES = (0.01, 0.025, 0.04, 0.06)
#: The limit on extra traffic for a faster step: bytes moved, relative to a walk by bytes alone.
MORE = 1.15
#: Walks by bytes alone. The tiles that stand after them are taken to stand between any two runs.
RUNS = 2
_ACTS = tuple(Act)


class Planned(NamedTuple):
    """One move. offset: where the tile will stand, in bytes; for LEAVE, where it stood."""

    act: Act
    tile: Tile
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """The moves of a step of `program` in a tier of `cap` bytes, at multiples of `alignment`.

    start: the offset of each tile that stands when a step begins, and again when it ends. changed: the tiles of `start` whose
    bytes below are older then.
    moves: moves[i] are made, in order, before entry i, and the last ones behind the last entry. births: by entry, the operands
    that it overwrites whole and that stand nowhere yet, with their offsets.
    passing: inputs that the host writes below the tier before a run; they are dead behind their last use.
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
        """Return the bytes of all tiles that do `act` in a step."""
        return sum(planned.tile.nbytes for planned in self.planned() if planned.act is act)

    def planned(self) -> Iterator[Planned]:
        """Yield all moves, in order."""
        for moves in self.moves:
            yield from moves


def pack(uses: Uses, cap: int, depth: int) -> Packing | None:
    """Return the best packing found of `uses` in a tier of `cap` bytes; None if a step does not fit.

    depth: of prefetch. Loading early and evicting early take room, so more bytes have to move. Of the packings that move
    about the fewest bytes, the fastest is taken.
    """
    cap = cap // uses.alignment * uses.alignment
    found = _best(_Packer(uses, cap), depth)
    return None if found is None else _packing(uses, cap, found)


def resident(program: Program, alignment: int) -> Packing:
    """Return the packing for RAM that is the device and holds everything: nothing moves, and offsets mean nothing."""
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
    """Return the packing for a device that holds everything, over RAM: each tile is loaded once, and leaves only for the host.

    Offsets mean nothing.
    """
    largest, count = int(uses.sizes.max(initial=0)), len(uses.tiles)
    cap = int(uses.sizes.sum()) + (count + 1) * largest  # so there is a hole for each tile, wherever the others stand
    found = _Packer(uses, cap).packed(cap, 0)
    assert found is not None, "everything fits"
    # Tiles that the host never uses count as changed, so a step and a validation that alternate begin with the same state.
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
    """A walk with places.

    home: the offsets of the tiles that stand between two runs. changed: those of them that are newer than their copy below.
    """

    walk: Walk
    home: dict[int, int]
    changed: set[int]


class _Packer(NamedTuple):
    """The arguments that all walks share."""

    uses: Uses
    cap: int

    def settled(self, ahead: int, slack: int) -> tuple[Walk, dict[int, Stay]]:
        """Walk RUNS times by bytes alone; return the last walk and the tiles that stand at its end.

        Raises NoRoom if an entry does not fit. ahead, slack: as in `Walk`.
        """
        standing = inputs_alone(self.uses, self.cap)
        for _ in range(RUNS):
            walk = Walk(self.uses, self.cap, ahead, slack, standing)
            standing = walk.standing()
        return walk, standing

    def packed(self, ahead: int, slack: int) -> _Packed | None:
        """Walk with places through a step and back to its beginning; None if that is impossible. ahead, slack: as in `Walk`."""
        try:
            _, standing = self.settled(ahead, slack)
            home = _homes(self.uses, self.cap, standing)
            walk = Walk(self.uses, self.cap, ahead, slack, standing, kept=standing, home=home)
        except NoRoom:
            return None
        changed = {tile for tile in home if walk.tiles["dirty"][tile]}
        if not self.uses.has_link:
            changed.update(self.uses.inputs)  # before the next run, the host writes them where they stand
            changed.update(tile for tile in self.uses.passing if tile in home)
        return _Packed(walk, home, changed)


def _best(packer: _Packer, depth: int) -> _Packed | None:
    """Return the fastest packing that moves at most MORE times the fewest bytes, else the packing that moves least.

    The shares are tried in ascending order: loading earlier moves more bytes. Once a packing moves too many, the next share is
    not tried.
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
    """Return the offset of each standing tile between two runs: from the top down, in the order in which the tiles came.

    The tile that came last is used and evicted first, because a step ends with the tiles that it began with. So room grows from
    below.
    """
    homes, offset, sizes = {}, cap, uses.sizes.tolist()
    for tile in sorted(standing, key=lambda tile: (standing[tile].since, tile)):
        offset -= sizes[tile]
        homes[tile] = offset
    return homes
