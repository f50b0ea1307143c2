"""A program in numbers, as a plan of memory reads it: which tiles each entry uses on a tier, and when it needs them again.

Pure. walk.py and packing.py decide which tile stands where.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from asynctile.program.operation import HOST, READ, UPDATE, WRITE, Operation
from asynctile.program.program import AT_HOST, Entry, Mark, Program
from asynctile.schedule.pace import Pace
from asynctile.storage.tile import NEVER, Tile

#: The accesses, as numbers for compiled code.
READS, WRITES, UPDATES = range(3)
HOWS = {READ: READS, WRITE: WRITES, UPDATE: UPDATES}

#: One use. tile: its number. how: its access. again: the position at which its bytes are needed here next, perhaps in the next
#: run; NEVER if they are dead, or if they are overwritten or used by the host first. dies: it is a temporary at its last use.
USE = np.dtype([("tile", np.int64), ("how", np.int64), ("again", np.int64), ("dies", np.bool_)], align=True)
#: One entry. at: the index of its first use; the next entry's `at` ends them. rewritten: in the same way, the first tile into
#: which the host writes new bytes there; the tiles of the end entry are written before every run. on_host: it runs on the host.
#: seconds: the time that it takes by itself.
ENTRY = np.dtype([("at", np.int64), ("rewritten", np.int64), ("seconds", np.float64), ("on_host", np.bool_)], align=True)

#: One use of an entry: as in USE.
Used = tuple[int, int, int, bool]


class EntryUses(NamedTuple):
    """An entry's uses of tiles on a tier. used: one per tile. rewritten, on_host, seconds: as in ENTRY."""

    used: Sequence[Used]
    rewritten: Sequence[int] = ()
    seconds: float = 0.0
    on_host: bool = False


class Uses:
    """The uses of `program` on one tier.

    tiles: by number, the persistent ones of the program first, and `others`, which only stand there, last. sizes: of each,
    rounded up to `alignment`. pace: of the tier's device and its link.
    has_link: RAM is below the tier, over a link. Without one, the host writes inputs where they stand, and a mark at which it
    does so uses them.
    inputs: the numbers of the inputs that the host writes in the tier before every run. passing: of inputs that it writes
    below; they are dead behind their last use.
    uses: USE records, each tile once per entry, and behind them those of rewritten tiles. entries: ENTRY records, and two more
    for the end.
    """

    def __init__(
        self, program: Program, alignment: int, pace: Pace, entries: Iterable[EntryUses], inputs: list[int], *, has_link: bool,
        passing: Sequence[int] = (), others: Sequence[Tile] = (),
    ) -> None:  # fmt: skip
        self.program = program
        self.alignment = alignment
        self.has_link = has_link
        self.pace = pace
        self.tiles = [*tiles_of(program), *others]
        self.nbytes = np.array([tile.nbytes for tile in self.tiles], np.int64)
        self.sizes = -(-self.nbytes // alignment) * alignment
        self.inputs = inputs
        self.passing = passing
        used: list[Used] = []
        rewritten: list[int] = []
        rows = []
        for entry in [*entries, EntryUses((), inputs), EntryUses(())]:
            rows.append((len(used), len(rewritten), entry.seconds, entry.on_host))
            used += entry.used
            rewritten += entry.rewritten
        self.uses = np.array([*used, *((tile, WRITES, NEVER, False) for tile in rewritten)], USE)
        self.entries = np.array(rows, ENTRY)
        self.entries["rewritten"] += len(used)

    def __len__(self) -> int:
        return len(self.entries) - 2

    def first_needs(self) -> dict[int, int]:
        """Return the position at which each tile's bytes are needed first; tiles that are overwritten first are left out."""
        count = int(self.entries["at"][-1])
        tiles, first = np.unique(self.uses["tile"][:count], return_index=True)
        entries = np.searchsorted(self.entries["at"], first, side="right") - 1
        read = (self.uses["how"][first] != WRITES) & ~self.entries["on_host"][entries]
        return dict(zip(tiles[read].tolist(), entries[read].tolist(), strict=True))

    def dying(self) -> list[list[Tile]]:
        """Return, for each entry, those of its tiles whose bytes are dead behind it."""
        found: list[list[Tile]] = [[] for _ in range(len(self))]
        numbers = np.flatnonzero(self.uses["dies"])
        behind = np.searchsorted(self.entries["at"], numbers, side="right") - 1
        for entry, tile in zip(behind.tolist(), self.uses["tile"][numbers].tolist(), strict=True):
            found[entry].append(self.tiles[tile])
        return found


def tiles_of(program: Program) -> list[Tile]:
    """Return the tiles of a program, in the order of their numbers in plans."""
    return list(dict.fromkeys([*program.standing, *program.inputs.values(), *program.temporaries]))


def uses_of(
    program: Program, alignment: int, pace: Pace, *, has_link: bool, inputs_stand: bool = True, others: Sequence[Tile] = ()
) -> Uses:
    """Return the uses of the tier in which operations run.

    alignment: of tiles there, in bytes. pace: for the seconds of each entry. has_link: RAM is below that tier. inputs_stand:
    without a link, the host writes inputs to this tier before a run; otherwise below it. others: tiles that only stand there.
    """
    numbers = {tile: number for number, tile in enumerate(tiles_of(program))}
    ranks = program.device_uses if has_link else program.next_uses
    passing = dict.fromkeys(program.inputs.values()) if not has_link and not inputs_stand else {}
    entries = []
    for index, (entry, again) in enumerate(zip(program.entries, ranks, strict=True)):
        on_host = has_link and entry.device == HOST
        given = [numbers[tile] for tile in program.rewritten[entry.name]] if isinstance(entry, Mark) else []
        used = _used(program, entry, again, numbers, passing)
        if not has_link:
            used += [(tile, WRITES, _first_use(program, tile, index), False) for tile in given]
        entries.append(EntryUses(used, given if has_link else (), seconds_of(pace, entry, on_host=on_host), on_host))
    inputs = [numbers[tile] for tile in program.inputs.values() if tile not in passing]
    passes = [numbers[tile] for tile in passing]
    return Uses(program, alignment, pace, entries, inputs, has_link=has_link, passing=passes, others=others)


def hows_of(entry: Entry) -> dict[Tile, int]:
    """Return how an entry uses each of its tiles."""
    found: dict[Tile, int] = {}
    for tile, letter in zip(entry.tiles, entry.access, strict=True):
        how = HOWS[letter]
        found[tile] = how if found.get(tile, how) == how else UPDATES  # an operation may use a tile twice
    return found


def is_dead(tile: Tile, rank: int) -> bool:
    """Return whether no entry uses a tile again, given the rank of its next use."""
    return rank == NEVER and not tile.persistent


def has_passed(program: Program, rank: int) -> bool:
    """Return whether a run of the program no longer needs a tile's bytes, given the rank of its next use."""
    return rank >= len(program)


def _used(
    program: Program, entry: Entry, again: Sequence[int], numbers: Mapping[Tile, int], passing: Container[Tile]
) -> list[Used]:
    """Return the uses of one entry. passing: tiles that are not needed between two runs."""
    used = []
    ranks = dict(zip(entry.tiles, again, strict=True))
    for (tile, how), rank in zip(hows_of(entry).items(), ranks.values(), strict=True):
        if tile in passing and has_passed(program, rank):
            used.append((numbers[tile], how, NEVER, True))
        else:
            used.append((numbers[tile], how, rank if rank < AT_HOST else NEVER, is_dead(tile, rank)))
    return used


def _first_use(program: Program, tile: int, behind: int) -> int:
    """Return the position of the first entry behind `behind` that names the tile; NEVER if there is none."""
    wanted, entries = tiles_of(program)[tile], program.entries
    return next((index for index in range(behind + 1, len(entries)) if wanted in entries[index].tiles), NEVER)


def seconds_of(pace: Pace, entry: Entry, *, on_host: bool) -> float:
    """Return the seconds of an entry by itself."""
    if not isinstance(entry, Operation):
        return 0.0
    nbytes = sum(tile.nbytes for tile in entry.tiles)
    return nbytes / pace.updated_per_s if on_host else pace.operation(entry.flops, nbytes)
