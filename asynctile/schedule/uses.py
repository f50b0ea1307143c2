"""A program in numbers, as a plan of memory reads it: which tiles each entry uses on the tier where operations run, and when it
needs their bytes again. Pure; who stands where is walk.py and packing.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.program.operation import HOST, READ, UPDATE, WRITE, Operation
from asynctile.program.program import AT_HOST, Mark, Program
from asynctile.schedule.pace import Pace
from asynctile.storage.tile import NEVER

#: Accesses as compiled code knows them.
READS, WRITES, UPDATES = range(3)
_HOWS = {READ: READS, WRITE: WRITES, UPDATE: UPDATES}

#: A use. tile: its number. how: its access. again: the position at which its bytes are needed here next, which may be in the
#: next run; NEVER if they are overwritten, dead or wanted by the host first. dies: a temporary that nobody uses again.
USE = np.dtype([("tile", np.int64), ("how", np.int64), ("again", np.int64), ("dies", np.bool_)], align=True)
#: An entry. at: its first use, behind which come all up to that of the next. rewritten: likewise the first of the tiles to
#: which the host gives other bytes there; those of the end are written before every run. on_host: it runs there. seconds:
#: that it takes by itself.
ENTRY = np.dtype([("at", np.int64), ("rewritten", np.int64), ("seconds", np.float64), ("on_host", np.bool_)], align=True)


class Uses:
    """Of `program`. tiles: by number, the persistent ones first. sizes: bytes of each, rounded up to `alignment`.

    has_link: whether there is RAM below the tier, over a link. Without one the host writes inputs where they stand, and a
    mark at which it does uses them. inputs: the numbers of those that it writes before every run. uses: USE records, each
    tile once in an entry, and behind them those of tiles that are rewritten. entries: ENTRY records, and two more, of the
    end. pace: of the tier's device and its link.
    """

    def __init__(self, program: Program, alignment: int, has_link: bool, pace: Pace) -> None:
        self.program = program
        self.has_link = has_link
        self.pace = pace
        self.tiles = list(dict.fromkeys([*program.standing, *program.inputs.values(), *program.temporaries]))
        self.nbytes = np.array([tile.nbytes for tile in self.tiles], np.int64)
        self.sizes = -(-self.nbytes // alignment) * alignment
        self._numbers = {tile: number for number, tile in enumerate(self.tiles)}
        self.inputs = [self._numbers[tile] for tile in program.inputs.values()]
        used: list[tuple[int, int, int, bool]] = []
        rewritten: list[int] = []
        places: list[tuple[int, int]] = []
        ranks = program.device_uses if has_link else program.next_uses
        for index, (entry, again) in enumerate(zip(program.entries, ranks, strict=True)):
            places.append((len(used), len(rewritten)))
            given = [self._numbers[tile] for tile in program.rewritten[entry.name]] if isinstance(entry, Mark) else []
            if has_link:
                rewritten += given
            else:
                used += [(tile, WRITES, self._first_use(tile, index), False) for tile in given]
            used += self._used(entry.tiles, entry.access, again)
        places += [(len(used), len(rewritten)), (len(used), len(rewritten) + len(self.inputs))]
        rewritten += self.inputs
        self.uses = np.array([*used, *((tile, WRITES, NEVER, False) for tile in rewritten)], USE)
        self.entries = np.zeros(len(places), ENTRY)
        self.entries["at"] = [at for at, _ in places]
        self.entries["rewritten"] = [len(used) + at for _, at in places]
        on_host = [has_link and entry.device == HOST for entry in program.entries]
        self.entries["on_host"][: len(self)] = on_host
        self.entries["seconds"][: len(self)] = [_takes(pace, *pair) for pair in zip(program.entries, on_host, strict=True)]

    def __len__(self) -> int:
        return len(self.program)

    def _used(self, tiles: Any, access: str, again: tuple[int, ...]) -> Any:
        found: dict[int, tuple[int, int, int, bool]] = {}
        for tile, letter, rank in zip(tiles, access, again, strict=True):
            number, how = self._numbers[tile], _HOWS[letter]
            if number in found and found[number][1] != how:  # an operation may name a tile twice
                how = UPDATES
            found[number] = number, how, rank if rank < AT_HOST else NEVER, rank == NEVER and not tile.persistent
        return found.values()

    def _first_use(self, tile: int, behind: int) -> int:
        """The position of the first entry behind `behind` that names the tile; NEVER if there is none."""
        wanted, entries = self.tiles[tile], self.program.entries
        return next((index for index in range(behind + 1, len(entries)) if wanted in entries[index].tiles), NEVER)


def _takes(pace: Pace, entry: Any, on_host: bool) -> float:
    """Seconds of an entry by itself."""
    nbytes = sum(tile.nbytes for tile in entry.tiles)
    if on_host:
        return nbytes / pace.updated_per_s
    return pace.operation(entry.flops, nbytes) if isinstance(entry, Operation) else 0.0
