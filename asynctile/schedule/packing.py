"""A packing: where every tile stands in a tier, byte by byte, in a step that repeats; what moves before each entry, and when.

`pack` works it out, pure: a function of the program, the bytes and how far ahead to bring tiles in. Who stands and when is the
walk of stays.py, addresses are those of addresses.py, and both are decided together: a tile that finds no hole is given one by
copies within the tier, which cost a small part of what bringing bytes in again does, and only then by others that leave.
A run follows the packing without a decision of its own (packed.py).

The way not taken: slots of a few sizes. Any tile takes any free slot, and what a slot is larger than its tile is lost: a step
of which 99% fits moved as many bytes as one of which half does. Nor intervals packed offline with no tile moved: those that
want all of a cap need 1.14 of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from asynctile.program.program import Program
from asynctile.schedule.addresses import Addresses
from asynctile.schedule.stays import NoRoom, Stay, Walk
from asynctile.schedule.uses import Uses
from asynctile.storage.tile import Tile

#: A byte copied within the tier costs this part of one that comes from below or goes there.
COPY_COST = 1 / 32
#: Of the bytes, what is left free where that is possible: the more, the fewer copies; the less, the fewer loads.
SLACKS = (0.01, 0.0, 0.0025, 0.02)
#: Runs by bytes alone, after which whoever stands is taken to stand between two runs for good.
RUNS = 2


class Act(IntEnum):
    """What a tile does: leave, written back if it is newer here; go elsewhere within the tier; come from below."""

    LEAVE = 0
    COPY = 1
    LOAD = 2


class Planned(NamedTuple):
    """One move. offset: where the tile will stand, in bytes; of LEAVE, where it stood."""

    act: Act
    tile: Tile
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Of a step of `program` in a tier of `cap` bytes, at multiples of `alignment`.

    start: the offset of each tile that stands when a step begins, and again when it ends. moves: [i] are carried out in order
    before entry i, the last behind the last entry. births: by entry, its operands that are overwritten whole and stand nowhere
    yet, with their offsets. peak_nbytes: the most that stand at once.
    """

    program: Program
    cap: int
    alignment: int
    start: Mapping[Tile, int]
    moves: tuple[tuple[Planned, ...], ...]
    births: Mapping[int, tuple[tuple[Tile, int], ...]]
    peak_nbytes: int

    def nbytes(self, act: Act) -> int:
        """Of all tiles that do so in a step."""
        return sum(planned.tile.nbytes for planned in self.planned() if planned.act is act)

    def planned(self) -> Iterator[Planned]:
        """All moves, in order."""
        for moves in self.moves:
            yield from moves


def pack(program: Program, cap: int, *, alignment: int, ahead_nbytes: int, has_link: bool) -> Packing | None:
    """The cheapest packing found for a tier of `cap` bytes; None if a step does not fit so.

    alignment: of every tile. ahead_nbytes: how much may have been brought in before it is used. has_link: whether operations of
    the host run in RAM below the tier; else the tier is RAM, and they run in it.
    """
    uses, cap = Uses(program, alignment, has_link), cap // alignment * alignment
    found = [packer for slack in SLACKS if (packer := _packer(uses, cap, ahead_nbytes, int(slack * cap))) is not None]
    if not found:
        return None
    best, tiles = min(found, key=lambda packer: packer.cost), uses.tiles
    return Packing(
        program=program,
        cap=cap,
        alignment=alignment,
        start={tiles[tile]: offset for tile, offset in best.home.items()},
        moves=tuple(tuple(Planned(act, tiles[tile], offset) for act, tile, offset in moves) for moves in best.moves),
        births={entry: tuple((tiles[tile], offset) for tile, offset in born) for entry, born in best.births.items()},
        peak_nbytes=best.peak,
    )


def _packer(uses: Uses, cap: int, ahead: int, slack: int) -> Packer | None:
    """One that has walked through a step, and back to its beginning; None if there is no way."""
    try:
        standing = Walk(uses, cap, ahead, slack).standing()
        for _ in range(RUNS):
            walk = Walk(uses, cap, ahead, slack)
            walk.begin(standing)
            walk.run()
            standing = walk.standing()
        packer = Packer(uses, cap, ahead, slack, _homes(uses, cap, standing))
        packer.begin(standing, standing)
        packer.run()
        packer.bring_back()
    except NoRoom:
        return None
    return packer


def _homes(uses: Uses, cap: int, standing: Mapping[int, Stay]) -> dict[int, int]:
    """Where each of `standing` stands between two runs: from the top down in the order in which they came.

    Who came last is used first and leaves first, for a step ends with what it began with: so room grows from below.
    """
    homes, offset = {}, cap
    for tile in sorted(standing, key=lambda tile: (standing[tile].since, tile)):
        offset -= uses.sizes[tile]
        homes[tile] = offset
    return homes


class Packer(Walk):
    """A walk that finds an address for everyone, and writes down what moves. home: of those that stand between two runs.

    moves: (act, tile, offset) before each entry. births: (tile, offset) at each. copied: bytes that moved within the tier.
    """

    def __init__(self, uses: Uses, cap: int, ahead: int, slack: int, home: Mapping[int, int]) -> None:
        super().__init__(uses, cap, ahead, slack)
        self.home = home
        self.addresses = Addresses(cap, uses.sizes, home)
        self.moves: list[list[tuple[Act, int, int]]] = [[] for _ in range(len(uses) + 1)]
        self.births: dict[int, list[tuple[int, int]]] = {}
        self.copied = 0
        self._since: Mapping[int, Stay] = {}

    @property
    def cost(self) -> float:
        """What is to be small: bytes from and to below, and a little for those within the tier."""
        return self.loaded + self.written + COPY_COST * self.copied

    def begin(self, standing: Mapping[int, Stay], kept: Collection[int] | None = None) -> None:
        self._since = standing
        for tile, offset in self.home.items():
            self.addresses.take(tile, offset)
        super().begin(standing, kept)

    def bring_back(self) -> None:
        """The last run is over: everyone goes to where it stood when the run began. NoRoom if that cannot be."""
        for tile in [tile for tile, stands in enumerate(self.stands) if stands and tile not in self.home]:
            self._leave(tile)
        pending = [tile for tile, offset in self.home.items() if self.addresses.at.get(tile) != offset]
        stepped: set[int] = set()
        while pending:
            left = [tile for tile in pending if not self._settle(tile)]
            if len(left) == len(pending):  # they stand in each other's places
                self._step_aside(next(tile for tile in left if self.stands[tile]), stepped)
            pending = left

    def _settle(self, tile: int) -> bool:
        """Whether it stands at home now."""
        home, size = self.home[tile], self.uses.sizes[tile]
        if self.addresses.within(home, size):
            return False  # not even its own old place may overlap the new one
        if self.stands[tile]:
            self._move(tile, home)
        else:
            super()._enter(tile)
            self.addresses.take(tile, home)
            self.moves[self.now].append((Act.LOAD, tile, home))
            self.loaded += size
        return True

    def _step_aside(self, tile: int, stepped: set[int]) -> None:
        """Free the place of a tile that stands where another belongs; whoever has `stepped` aside before leaves."""
        offset = None if tile in stepped else self.addresses.room_for(tile)
        stepped.add(tile)
        if offset is None:
            self._leave(tile)
        else:
            self._move(tile, offset)

    def _move(self, tile: int, offset: int) -> None:
        self.addresses.move(tile, offset)
        self.moves[self.now].append((Act.COPY, tile, offset))
        self.copied += self.uses.sizes[tile]

    def _leave(self, tile: int) -> None:
        self.moves[self.now].append((Act.LEAVE, tile, self.addresses.at[tile]))
        super()._leave(tile)

    def _forget(self, tile: int) -> None:
        if self.stands[tile]:
            self.addresses.give(tile)
        super()._forget(tile)

    def _enter(self, tile: int, placed: Collection[int] = (), *, load: bool = False) -> bool:
        if tile in self.addresses.at:
            return super()._enter(tile)  # the run begins with it
        offset = self._home_of(tile, placed)
        if offset is None:
            offset = self.addresses.room_for(tile)
        if offset is None:
            made = self.addresses.room_made_for(tile, placed)
            if made is None:
                return False
            offset, moves = made
            self._make_way(moves)
        self.addresses.take(tile, offset)
        if load:
            self.moves[self.now].append((Act.LOAD, tile, offset))
        else:
            self.births.setdefault(self.now, []).append((tile, offset))
        return super()._enter(tile)

    def _make_way(self, moves: Iterable[tuple[int, int]]) -> None:
        for tile, offset in moves:
            self._move(tile, offset)

    def _home_of(self, tile: int, placed: Collection[int]) -> int | None:
        """Its home, if it comes for the last time in this run and whoever stands there can be sent elsewhere."""
        if tile not in self.home or self.now < self._since[tile].since:
            return None
        home, size = self.home[tile], self.uses.sizes[tile]
        moves = self.addresses.cleared(home, size, placed)
        if moves is None:
            return None
        self._make_way(moves)
        return home
