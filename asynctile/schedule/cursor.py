"""The cursor: walks a program ahead of its job and says what one tier should load early, and what should leave it early.

Pure decisions over storage/ledger.py, no events and no bytes: a stage (asynctile/run/stage.py) carries them out, on a dry
device for asynctile/measure/simulate.py. So a plan and a run cannot disagree. A cursor belongs to one job.

How far ahead is counted in slots, since slots are what it costs: half of them hold tiles that were loaded before their
use, half are kept free behind it. The free half matters as much. The tile used furthest away is often the one used last;
a load into its slot would wait for that very use and then for its write-back. So victims leave early, and their slots
age before they are filled.

Depth 0 is not another path: nothing is loaded ahead, and the tier lets each load wait for the work before it (lockstep.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from asynctile.program.operation import HOST, READ, WRITE
from asynctile.program.program import Entry, Program
from asynctile.schedule.positions import FAR
from asynctile.storage.demand import Demand
from asynctile.storage.ledger import Ledger
from asynctile.storage.move import Move
from asynctile.storage.residency import DIRTY, STORED, Residency
from asynctile.storage.tile import NEVER, Tile

#: The most of what is loaded ahead and what is kept free, as a share of the slots.
MOST_OF_SLOTS = 1 / 8
#: Entries that the cursor looks at ahead of the issue: where nothing is missing it would walk to the end at once.
HORIZON = 512


@dataclass(frozen=True, slots=True)
class Reach:
    """How far ahead, for each unit of prefetch depth: tiles loaded ahead, and slots kept free."""

    loaded: int
    free: int


#: Over a link, and from a disk, which answers late.
OVER_LINK, FROM_DISK = Reach(4, 4), Reach(16, 16)


class Cursor:
    """One job's way through its program, `base` positions on, ahead in the tier of `ledger`, where operations run.

    depth: prefetch, in units of `reach`; what it comes to is at most MOST_OF_SLOTS of the slots.
    """

    def __init__(self, ledger: Ledger, program: Program, base: int, demand: Demand, depth: int, reach: Reach) -> None:
        self.ledger = ledger
        self.program = program
        self.base = base
        self._at = 0
        self._pool = ledger.arena.pools[-1]
        self._most_ahead = self._slots(reach.loaded, depth, reach)
        # Where everything fits nothing need leave early.
        self._most_free = 0 if ledger.arena.holds(demand) else self._slots(reach.free, depth, reach)
        #: a position for each tile that was loaded ahead of the issue
        self._ahead: deque[int] = deque()
        #: tiles that an entry between the issue and the cursor overwrites: bytes of them below are old
        self._overwritten: set[Tile] = set()

    def rank_all(self) -> None:
        """Rank what stands in the tier by its first use in this job. Not needed behind a run of the same program."""
        for residency in self.ledger.resident:
            self._rank(residency)

    def look_ahead(self, index: int, moves: list[Move]) -> None:
        """After entry `index` was issued: moves that free slots and bring in what the next operations miss."""
        self._keep_free(moves)
        ahead, entries = self._ahead, self.program.entries
        if self._overwritten:
            self._overwritten.difference_update(entries[index].tiles)
        while ahead and ahead[0] <= index:
            ahead.popleft()
        if self.ledger.backing is None or len(ahead) >= self._most_ahead:
            return
        at = max(self._at, index + 1)
        stop = min(len(entries), index + HORIZON)
        while at < stop and len(ahead) < self._most_ahead:
            loaded = self._bring(entries[at], self.base + at, moves)
            if loaded < 0:
                break
            ahead.extend([at] * loaded)
            at += 1
        self._at = at

    def turn_back(self, moves: Sequence[Move]) -> None:
        """Something the cursor has passed may have been evicted: go back to where it is used."""
        for move in moves:
            if move.residency.slot is None:
                self.back_to(move.residency.next_use)

    def back_to(self, position: int) -> None:
        """What is used at `position` is not here, or not any more: the cursor must not have passed it."""
        use = position - self.base
        if use < self._at:
            self._at = use
            while self._ahead and self._ahead[-1] >= use:
                self._ahead.pop()

    def _slots(self, unit: int, depth: int, reach: Reach) -> int:
        """`unit` slots for each unit of depth, but no more than a fair share of the arena, and one if any."""
        slots, limit = unit * depth, self._pool.limit
        if limit is None:
            return slots
        return min(slots, max(min(depth, 1), int(limit * MOST_OF_SLOTS * unit / (reach.loaded + reach.free))))

    def _rank(self, residency: Residency) -> None:
        """By the first use of its tile in this job."""
        first = self.program.first_uses.get(residency.tile, NEVER)
        self.ledger.used(residency, self.base + first if first < NEVER else FAR, False)

    def _keep_free(self, moves: list[Move]) -> None:
        """Let tiles leave early until as many slots are free as should be."""
        free = self._pool.free
        if free is None:
            return
        while free < self._most_free and self.ledger.evict_ahead(self._pool, self.base + self._at, moves):
            free += 1

    def _bring(self, entry: Entry, needed_at: int, moves: list[Move]) -> int:
        """Number of tiles loaded for one entry ahead; -1 when there is no room for one."""
        count, ledger = 0, self.ledger
        for tile, how in zip(entry.tiles, entry.access):  # noqa: B905  # lengths are checked when the operation is made
            residency = tile.at.get(ledger)
            if residency is not None and residency.slot is not None:
                continue
            missing = self._missing(tile, entry)
            if missing is None:
                continue
            if how == WRITE:
                self._overwritten.add(tile)
            elif missing.state is STORED and tile not in self._overwritten:
                if not ledger.prefetch(missing, needed_at, moves):
                    return -1
                ledger.used(missing, needed_at, False)
                count += 1
        return count

    def _missing(self, tile: Tile, entry: Entry) -> Residency | None:
        """What would have to be loaded here before `entry` can use `tile`, which has no slot here; None if nothing."""
        return self.ledger.of(tile)


class DeviceCursor(Cursor):
    """The cursor of a device over RAM, where operations of the host use tiles that then need not be on the device."""

    def _bring(self, entry: Entry, needed_at: int, moves: list[Move]) -> int:
        if entry.device != HOST:
            return super()._bring(entry, needed_at, moves)
        self._overwritten.update(tile for tile, how in zip(entry.tiles, entry.access, strict=True) if how != READ)
        return 0


class RamCursor(Cursor):
    """The cursor of RAM between a device, whose ledger is `above`, and a disk."""

    def __init__(
        self, ledger: Ledger, program: Program, base: int, demand: Demand, depth: int, reach: Reach, above: Ledger
    ) -> None:
        super().__init__(ledger, program, base, demand, depth, reach)
        self._above = above

    def _rank(self, residency: Residency) -> None:
        if self._above.of(residency.tile).state is not DIRTY:  # else the copy here is old, and ranks last
            super()._rank(residency)

    def _missing(self, tile: Tile, entry: Entry) -> Residency | None:
        # An operation of the host needs in RAM what stands on the device, unless it has changed there and comes down.
        above = self._above.of(tile)
        copy: Residency | None = above.backing
        return None if above.slot is not None and entry.device != HOST else copy
