"""A packing: where every tile stands in a tier, byte by byte, in a step that repeats; what moves before each entry, and when.

`pack` works it out, pure: a function of the program, the bytes and how far ahead to bring tiles in. Who stands and when is the
walk of stays.py, addresses are those of addresses.py, and both are decided together (packer.py).
A run follows the packing without a decision of its own (packed.py).

The way not taken: slots of a few sizes. Any tile takes any free slot, and what a slot is larger than its tile is lost: a step
of which 99% fits moved as many bytes as one of which half does. Nor intervals packed offline with no tile moved: those that
want all of a cap need 1.14 of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from asynctile.program.program import Program
from asynctile.schedule.clock import Pace
from asynctile.schedule.packer import Act, Packer
from asynctile.schedule.stays import NoRoom, Stay, Walk
from asynctile.schedule.uses import Uses
from asynctile.storage.tile import Tile

#: Of the cap, for each unit of prefetch depth, what may be brought in early, and as much that is kept free.
SHARES = (0.01, 0.025, 0.04, 0.06)
#: The most bytes that may move, over those that have to by bytes alone, so that a step is faster.
MORE = 1.15
#: Runs by bytes alone, after which whoever stands is taken to stand between two runs for good.
RUNS = 2


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


class Numbered(NamedTuple):
    """A packing in numbers alone, tiles as `Uses.tiles` numbers them: what is left of it without the tiles of one process.

    start: offsets by tile. moves: (act, tile, offset), and births: by entry (tile, offset), as of a `Packing`.
    """

    start: Mapping[int, int]
    moves: Sequence[Sequence[tuple[int, int, int]]]
    births: Mapping[int, Sequence[tuple[int, int]]]
    peak_nbytes: int

    @classmethod
    def of(cls, packing: Packing, uses: Uses) -> Numbered:
        numbers = {tile: number for number, tile in enumerate(uses.tiles)}
        return cls(
            start={numbers[tile]: offset for tile, offset in packing.start.items()},
            moves=[[(int(act), numbers[tile], offset) for act, tile, offset in moves] for moves in packing.moves],
            births={entry: [(numbers[tile], offset) for tile, offset in born] for entry, born in packing.births.items()},
            peak_nbytes=packing.peak_nbytes,
        )

    def packing(self, uses: Uses, cap: int, alignment: int) -> Packing:
        """The same for these tiles."""
        tiles = uses.tiles
        return Packing(
            program=uses.program,
            cap=cap,
            alignment=alignment,
            start={tiles[tile]: offset for tile, offset in self.start.items()},
            moves=tuple(tuple(Planned(Act(act), tiles[tile], offset) for act, tile, offset in moves) for moves in self.moves),
            births={entry: tuple((tiles[tile], offset) for tile, offset in born) for entry, born in self.births.items()},
            peak_nbytes=self.peak_nbytes,
        )


def pack(program: Program, cap: int, *, alignment: int, pace: Pace, depth: int, has_link: bool) -> Packing | None:
    """The best packing found for a tier of `cap` bytes; None if a step does not fit so.

    alignment: of every tile. pace: of the tier's device and its link. depth: of prefetch, at least 1. has_link: whether
    operations of the host run in RAM below the tier; else the tier is RAM, and they run in it.

    To bring tiles in early, and to let others leave early, takes room, for which more bytes have to move: the fastest of those
    that move about the fewest bytes is taken.
    """
    uses, cap = Uses(program, alignment, has_link), cap // alignment * alignment
    best = _best(uses, cap, depth, pace)
    if best is None:
        return None
    return Numbered(best.home, best.moves, best.births, best.peak).packing(uses, cap, alignment)


def _best(uses: Uses, cap: int, depth: int, pace: Pace) -> Packer | None:
    """The fastest of those that move at most MORE than has to move by bytes alone, else that which moves least. More bytes to
    spare make more of them move: once there are too many the next need not be tried.
    """
    try:
        least, _ = _settled(uses, cap, 0)
    except NoRoom:
        return None
    found: list[Packer] = []
    for share in SHARES:
        packer = _packer(uses, cap, int(share * depth * cap), pace)
        if packer is not None:
            if found and packer.moved > MORE * least.moved:
                break
            found.append(packer)
    within = [packer for packer in found if packer.moved <= MORE * least.moved]
    if within:
        return min(within, key=lambda packer: packer.seconds)
    bare = _packer(uses, cap, 0, pace)
    return min(found if bare is None else [*found, bare], key=lambda packer: packer.moved, default=None)


def _settled(uses: Uses, cap: int, spare: int) -> tuple[Walk, dict[int, Stay]]:
    """A run by bytes alone that begins with who stands behind another, and who stands behind it. NoRoom if there is no way."""
    walk = Walk(uses, cap, spare, spare)
    for _ in range(RUNS):
        standing = walk.standing()
        walk = Walk(uses, cap, spare, spare)
        walk.begin(standing)
        walk.run()
    return walk, walk.standing()


def _packer(uses: Uses, cap: int, spare: int, pace: Pace) -> Packer | None:
    """One that has walked through a step, and back to its beginning; None if there is no way.

    spare: bytes that may be brought in early, and as many that are kept free.
    """
    try:
        _, standing = _settled(uses, cap, spare)
        packer = Packer(uses, cap, spare, spare, _homes(uses, cap, standing), pace)
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
