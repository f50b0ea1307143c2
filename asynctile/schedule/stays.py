"""Who stands in a tier and when, by bytes: a walk through a program that repeats. Whoever needs room next gets it from the tile
whose bytes are needed furthest away (Belady's MIN), and what will be needed is brought in some bytes ahead.

Pure. Here a tile fits if there are as many bytes free; `Packer` (packer.py) asks for them in one piece as well, and writes
down what moves. The walk mirrors what a run does by itself: lanes release temporaries behind their last use, an operation in
RAM takes down what the device has changed, the host's bytes replace those of the tier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from heapq import heappop, heappush
from typing import NamedTuple

from asynctile.program.operation import READ, WRITE
from asynctile.schedule.uses import Use, Uses
from asynctile.storage.tile import NEVER

#: Entries that the walk looks ahead at most: where nothing is missing it would look to the end at each.
HORIZON = 512


class NoRoom(Exception):
    """What one entry uses does not fit at once."""


class Stay(NamedTuple):
    """Of a tile that stands when a run begins. since: the entry of the run before at which it came, -1 if it stood throughout.
    again: the position at which its bytes are needed first. dirty: what is below is older.
    """

    since: int
    again: int
    dirty: bool


class Walk:
    """A run of `uses` in `cap` bytes. ahead: bytes that may have been brought in before they are used. slack: bytes that stay
    free as long as somebody can leave for them.

    loaded, written: bytes from and to below, so far. peak: the most bytes that stood at once.
    """

    def __init__(self, uses: Uses, cap: int, ahead: int, slack: int) -> None:
        self.uses = uses
        self.cap = cap
        self.used = self.peak = self.loaded = self.written = 0
        count = len(uses.tiles)
        self.stands = [False] * count
        self.again = [NEVER] * count
        self.dirty = [False] * count
        self.since = [-1] * count
        #: where the walk is: before entry `now`, or at it
        self.now = 0
        #: those that must stand when the run ends; None: whoever does
        self._kept: Collection[int] | None = None
        self._ahead = ahead
        self._slack = slack
        #: (-again, tile), the furthest first, with stale entries
        self._furthest: list[tuple[int, int]] = []
        #: (entry, bytes) of what was brought in for entries that are still ahead
        self._brought: deque[tuple[int, int]] = deque()
        self._brought_nbytes = self._looked = 0
        #: tiles that entries between here and there overwrite, and the last that does: their bytes below are old up to there
        self._overwritten: dict[int, int] = {}

    @property
    def moved(self) -> float:
        """Bytes from and to below."""
        return self.loaded + self.written

    def begin(self, standing: Mapping[int, Stay], kept: Collection[int] | None = None) -> None:
        """The state before a run. kept: see `_kept`."""
        self._kept = kept
        for tile, stay in standing.items():
            self.dirty[tile] = stay.dirty
            self._enter(tile)
            self._rank(tile, stay.again)

    def run(self) -> None:
        """Walk once through the program. NoRoom if an entry does not fit."""
        uses = self.uses
        for index, entry in enumerate(uses.entries):
            self.now = index
            for tile in uses.rewritten.get(index, ()):
                self._forget(tile)
            while self._brought and self._brought[0][0] <= index:
                self._brought_nbytes -= self._brought.popleft()[1]
            if index in uses.on_host:
                self._use_below(entry)
            elif entry:
                self._use(entry)
            for use in entry if self._overwritten else ():
                if self._overwritten.get(use.tile) == index:
                    del self._overwritten[use.tile]
            self.now = index + 1
            if self._brought_nbytes < self._ahead:
                self._look_ahead()

    def standing(self) -> dict[int, Stay]:
        """Who stands between two runs, seen from the one that comes: over a link no inputs, in RAM all of them."""
        inputs, length = set(self.uses.inputs), len(self.uses)
        if not self.uses.has_link:
            for tile in self.uses.inputs:
                if not self.stands[tile] and not self._place(tile, -1, inputs, (), load=False):
                    raise NoRoom
                self.dirty[tile] = True
        return {
            tile: Stay(self.since[tile], self.again[tile] - length, self.dirty[tile])
            for tile, stands in enumerate(self.stands) if stands and not (self.uses.has_link and tile in inputs)
        }  # fmt: skip

    def _use(self, entry: tuple[Use, ...]) -> None:
        stands, dirty = self.stands, self.dirty
        missing = [use for use in entry if not stands[use.tile]]
        if missing:
            held = {use.tile for use in entry}
            placed: list[int] = []
            for use in missing:
                if not self._place(use.tile, -1, held, placed, load=use.how != WRITE):
                    raise NoRoom
                placed.append(use.tile)
        for tile, how, again, _ in entry:
            if how != READ:
                dirty[tile] = True
            self._rank(tile, again)
        self._perform(entry)
        for use in entry:
            if use.dies:
                self._forget(use.tile)

    def _use_below(self, entry: tuple[Use, ...]) -> None:
        """An operation in RAM: what it reads comes down if it is newer here, what it changes is old here."""
        for use in entry:
            tile = use.tile
            if self.stands[tile] and use.how != WRITE and self.dirty[tile]:
                self._leave(tile)
            if use.how != READ or use.dies:
                self._forget(tile)
            self._rank(tile, use.again)
        self._perform(entry)

    def _perform(self, entry: tuple[Use, ...]) -> None:
        """All that it uses is there."""

    def _look_ahead(self) -> None:
        """Bring in what the next entries miss, unless somebody who is needed sooner would have to leave."""
        uses, at = self.uses, max(self._looked, self.now)
        stop = min(len(uses), self.now + HORIZON)
        while at < stop and self._brought_nbytes < self._ahead and at not in uses.rewritten:
            entry = uses.entries[at]
            if at in uses.on_host:
                self._overwritten.update((use.tile, at) for use in entry if use.how != READ)
            elif not self._bring(entry, at):
                break
            at += 1
        self._looked = at

    def _bring(self, entry: tuple[Use, ...], at: int) -> bool:
        """Whether all that the entry reads stands now, or will be written first."""
        placed: list[int] = []
        for use in entry:
            tile = use.tile
            if use.how == WRITE:
                self._overwritten[tile] = at
            elif not self.stands[tile] and tile not in self._overwritten:
                size = self.uses.sizes[tile]
                if self._brought_nbytes and self._brought_nbytes + size > self._ahead:
                    return False
                if not self._place(tile, at, (), placed, load=True):
                    return False
                placed.append(tile)
                self._rank(tile, at)
                self._brought.append((at, size))
                self._brought_nbytes += size
        return True

    def _place(self, tile: int, beyond: int, held: Collection[int], placed: Collection[int], *, load: bool) -> bool:
        """Make it stand; False if only those needed up to `beyond`, or `held`, could leave for it.

        placed: those that were placed for the same entry, and do not stand yet where they will.
        """
        size = self.uses.sizes[tile]
        while self.used + size > self.cap - self._slack or not self._enter(tile, placed, load=load):
            if not self._make_room(size, beyond, held):
                if self.used + size <= self.cap and self._enter(tile, placed, load=load):
                    break
                return False
        self.since[tile] = self.now
        if load:
            self.loaded += size
        return True

    def _make_room(self, size: int, beyond: int, held: Collection[int]) -> bool:
        """Let somebody leave; where bytes were not what is missing, a good deal of them. False if nobody can."""
        enough = self.used - max(1, size // 4) if self.used + size <= self.cap - self._slack else self.used - 1
        left = False
        while self.used > enough:
            tile = self._victim(beyond, held)
            if tile is None:
                break
            self._leave(tile)
            left = True
        return left

    def _victim(self, beyond: int, held: Collection[int]) -> int | None:
        """Whose bytes are needed furthest away, behind position `beyond`."""
        furthest, aside, found = self._furthest, [], None
        while furthest and found is None:
            rank, tile = furthest[0]
            if not self.stands[tile] or self._ranked(tile) != -rank:
                heappop(furthest)
            elif tile in held:
                aside.append(heappop(furthest))
            elif -rank > beyond:
                found = tile
            else:
                break
        for entry in aside:
            heappush(furthest, entry)
        return found

    def _rank(self, tile: int, again: int) -> None:
        self.again[tile] = again
        if self.stands[tile]:
            heappush(self._furthest, (-again if self._kept is None else -self._ranked(tile), tile))

    def _ranked(self, tile: int) -> int:
        """Who will not be kept is not needed beyond the run."""
        again = self.again[tile]
        if self._kept is not None and again >= len(self.uses) and tile not in self._kept:
            return NEVER
        return again

    def _leave(self, tile: int) -> None:
        """Somebody else needs the room: what is newer here goes down."""
        if self.dirty[tile]:
            self.written += self.uses.sizes[tile]
        self._forget(tile)

    def _forget(self, tile: int) -> None:
        """It stands here no more, if it did, and its bytes with it."""
        if self.stands[tile]:
            self.stands[tile] = self.dirty[tile] = False
            self.used -= self.uses.sizes[tile]

    def _enter(self, tile: int, placed: Collection[int] = (), *, load: bool = False) -> bool:
        """It stands here from now on, if there is a place for it."""
        self.stands[tile] = True
        self.used += self.uses.sizes[tile]
        self.peak = max(self.peak, self.used)
        return True
