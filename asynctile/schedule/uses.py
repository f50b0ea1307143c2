"""A program in numbers, as a plan of memory reads it: which tiles each entry uses on the tier where operations run, and when it
needs their bytes again. Pure; who stands where is stays.py and packing.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from asynctile.program.operation import HOST, UPDATE, WRITE
from asynctile.program.program import AT_HOST, Mark, Program
from asynctile.storage.demand import align
from asynctile.storage.tile import NEVER, Tile


class Use(NamedTuple):
    """One operand. tile: its number. how: its access. again: the position at which its bytes are needed here next, which may be
    in the next run; NEVER if they are overwritten, dead or wanted by the host first. dies: a temporary that nobody uses again.
    """

    tile: int
    how: str
    again: int
    dies: bool


class Uses:
    """Of `program`. tiles: by number, the persistent ones first. sizes: bytes of each, rounded up to `alignment`.

    entries: what each entry uses, every tile once. has_link: whether there is RAM below the tier, over a link. on_host: entries
    that run there. rewritten: by entry, tiles to which the host gives other bytes there. inputs: those to which it does before
    every run. Without a link the host writes them where they stand, and a mark at which it does uses them.
    """

    def __init__(self, program: Program, alignment: int, has_link: bool) -> None:
        self.program = program
        self.has_link = has_link
        self.tiles = list(dict.fromkeys([*program.standing, *program.inputs.values(), *program.temporaries]))
        numbers = {tile: number for number, tile in enumerate(self.tiles)}
        self.sizes = [align(tile.nbytes, alignment) for tile in self.tiles]
        self.inputs = [numbers[tile] for tile in program.inputs.values()]
        ranks = program.device_uses if has_link else program.next_uses
        self.entries: list[tuple[Use, ...]] = []
        self.on_host: set[int] = set()
        self.rewritten: dict[int, list[int]] = {}
        for index, (entry, again) in enumerate(zip(program.entries, ranks, strict=True)):
            if has_link and entry.device == HOST:
                self.on_host.add(index)
            self.entries.append(_uses(entry.tiles, entry.access, again, numbers))
            if isinstance(entry, Mark) and program.rewritten[entry.name]:
                self.rewritten[index] = [numbers[tile] for tile in program.rewritten[entry.name]]
        if not has_link:
            self._write_in_place()

    def __len__(self) -> int:
        return len(self.entries)

    def _write_in_place(self) -> None:
        for index, tiles in self.rewritten.items():
            later = {tile: self._first_use(tile, index) for tile in tiles}
            self.entries[index] = tuple(Use(tile, WRITE, again, dies=False) for tile, again in later.items())
        self.rewritten = {}

    def _first_use(self, tile: int, behind: int) -> int:
        """The position of the first entry behind `behind` that uses the tile; NEVER if there is none."""
        users = (index for index in range(behind + 1, len(self)) if any(use.tile == tile for use in self.entries[index]))
        return next(users, NEVER)


def _uses(tiles: tuple[Tile, ...], access: str, again: tuple[int, ...], numbers: Mapping[Tile, int]) -> tuple[Use, ...]:
    found: dict[int, Use] = {}
    for tile, how, rank in zip(tiles, access, again, strict=True):
        number, dies = numbers[tile], rank == NEVER and not tile.persistent
        before = found.get(number)
        if before is not None:  # an operation may name a tile twice
            how = how if how == before.how else UPDATE
        found[number] = Use(number, how, rank if rank < AT_HOST else NEVER, dies)
    return tuple(found.values())
