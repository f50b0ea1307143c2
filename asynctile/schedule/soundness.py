"""Whether a step can run by a packing: nothing overlaps, operands are there, and the step ends where it began.

For packings that this process has not made (asynctile/repeat/packing_files.py): a run follows a packing without a decision of
its own, so it does not begin with one that is wrong. Pure; whether it is a good one is not asked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from asynctile.program.operation import READ, WRITE
from asynctile.schedule.packed import changed_at_start
from asynctile.schedule.packing import Act, Numbered
from asynctile.schedule.uses import Use, Uses


class _Unsound(Exception):
    """No run could follow it."""


def is_sound(found: Numbered, uses: Uses, cap: int, alignment: int) -> bool:
    """Whether `found` is a packing of `uses` in `cap` bytes at multiples of `alignment`. Its numbers may be any."""
    try:
        _check_numbers(found, uses)
        _ask(found.peak_nbytes <= cap)
        _Replay(found, uses, cap, alignment).run()
    except _Unsound:
        return False
    return True


def _check_numbers(found: Numbered, uses: Uses) -> None:
    """They name entries, moves and tiles that there are."""
    tiles, entries = range(len(uses.tiles)), range(len(uses))
    _ask(len(found.moves) == len(uses) + 1)
    _ask(all(tile in tiles for tile in found.start))
    _ask(all(act in (Act.LEAVE, Act.COPY, Act.LOAD) and tile in tiles for moves in found.moves for act, tile, _ in moves))
    for entry, born in found.births.items():
        _ask(entry in entries and all(tile in tiles for tile, _ in born) and len(dict(born)) == len(born))


class _Replay:
    """A step by `found`. at: where each tile stands that does. dirty: those whose bytes below are older. below: what has its
    newest bytes there.
    """

    def __init__(self, found: Numbered, uses: Uses, cap: int, alignment: int) -> None:
        self.found, self.uses = found, uses
        self.cap, self.alignment = cap, alignment
        self.at: dict[int, int] = {}
        self.used = 0
        #: of what stands, ascending
        self._offsets: list[int] = []
        self._ends: list[int] = []
        numbers = {tile: number for number, tile in enumerate(uses.tiles)}
        changed = changed_at_start(found.packing(uses, cap, alignment), over_link=uses.has_link)
        self.dirty = {numbers[tile] for tile in changed}
        self.below = {numbers[tile] for tile in uses.program.first_uses} - self.dirty

    def run(self) -> None:
        """_Unsound where a run would go wrong."""
        uses, found = self.uses, self.found
        for tile, offset in found.start.items():
            _ask(uses.tiles[tile].persistent and not (uses.has_link and tile in uses.inputs))
            self._put(tile, offset)
        for index, entry in enumerate(uses.entries):
            self._move(found.moves[index])
            for tile in uses.rewritten.get(index, ()):
                self._drop(tile)
            born = found.births.get(index, ())
            if index in uses.on_host:
                _ask(not born)
                self._use_below(entry)
            else:
                self._use(entry, dict(born))
        self._move(found.moves[-1])
        _ask(self.at == found.start)

    def _move(self, moves: Iterable[tuple[int, int, int]]) -> None:
        for act, tile, offset in moves:
            if act == Act.LEAVE:
                _ask(self.at.get(tile) == offset)
                self._take_away(tile)
                self._come_down(tile)
            elif act == Act.COPY:
                before = self.at.get(tile)
                _ask(before is not None and abs(before - offset) >= self.uses.sizes[tile])
                self._take_away(tile)
                self._put(tile, offset)
            else:
                _ask(tile not in self.at and tile in self.below)
                self._put(tile, offset)

    def _use(self, entry: Iterable[Use], born: Mapping[int, int]) -> None:
        _ask(born.keys() <= {use.tile for use in entry if use.how == WRITE and use.tile not in self.at})
        for tile, offset in born.items():
            self._put(tile, offset)
        for use in entry:
            _ask(use.tile in self.at)
            if use.how != READ:
                self.dirty.add(use.tile)
                self.below.discard(use.tile)
        self._let_die(entry)

    def _use_below(self, entry: Iterable[Use]) -> None:
        """An operation in RAM: what it reads comes down if it is newer here, what it changes is old here."""
        for use in entry:
            if use.how != WRITE and use.tile in self.dirty:
                self._take_away(use.tile)
                self._come_down(use.tile)
            _ask(use.how == WRITE or use.tile in self.below)
            if use.how != READ:
                self._drop(use.tile)
        self._let_die(entry)

    def _let_die(self, entry: Iterable[Use]) -> None:
        for use in entry:
            if use.dies:
                self._drop(use.tile)
                self.below.discard(use.tile)

    def _drop(self, tile: int) -> None:
        """It stands here no more, if it did; what is below counts."""
        if tile in self.at:
            self._take_away(tile)
        self._come_down(tile)

    def _come_down(self, tile: int) -> None:
        self.dirty.discard(tile)
        self.below.add(tile)

    def _put(self, tile: int, offset: int) -> None:
        """It stands there, where nobody does."""
        end = offset + self.uses.sizes[tile]
        _ask(tile not in self.at and offset >= 0 and end <= self.cap and offset % self.alignment == 0)
        place = bisect_left(self._offsets, offset)
        _ask(not place or self._ends[place - 1] <= offset)
        _ask(place == len(self._offsets) or end <= self._offsets[place])
        self._offsets.insert(place, offset)
        self._ends.insert(place, end)
        self.at[tile] = offset
        self.used += end - offset
        _ask(self.used <= self.found.peak_nbytes)

    def _take_away(self, tile: int) -> None:
        offset = self.at.pop(tile)
        place = bisect_left(self._offsets, offset)
        self.used -= self._ends[place] - offset
        del self._offsets[place], self._ends[place]


def _ask(holds: bool) -> None:
    if not holds:
        raise _Unsound
